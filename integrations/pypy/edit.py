"""Makes an RPython source tree call allocsample: edit.py <directory that holds the package rpython> <allocsample.h>

Works with CPython 2.7 and 3. Each edit finds its place by one line, of which there must be as many as the edit says;
otherwise nothing is changed at all.
"""
from __future__ import print_function
import os
import shutil
import sys

INCMINIMARK = 'rpython/memory/gc/incminimark.py'
FRAMEWORK = 'rpython/memory/gctransform/framework.py'


class Edit(object):
    """At the `which`-th of the `of` lines that are `line` (blanks around it do not count)."""

    def __init__(self, path, line, before=(), after=(), replace=None, of=1, which=None, indent=0):
        self.path, self.line = path, line
        self.before, self.after, self.replace = before, after, replace
        self.of, self.which, self.indent = of, which, indent

    def apply(self, lines):
        places = [at for at, text in enumerate(lines) if text.strip() == self.line]
        if len(places) != self.of:
            raise ValueError('%s: %d lines are %r, not %d' % (self.path, len(places), self.line, self.of))
        if self.which is not None:
            places = [places[self.which]]
        for at in reversed(places):
            text = lines[at]
            margin = text[:len(text) - len(text.lstrip())]
            new_margin = margin[:len(margin) + self.indent] if self.indent < 0 else margin
            if self.replace is not None:
                old, new = self.replace
                if old not in text:
                    raise ValueError('%s: no %r in %r' % (self.path, old, text))
                text = text.replace(old, new)
            lines[at:at + 1] = ([new_margin + new + '\n' for new in self.before] + [text] +
                                [new_margin + new + '\n' for new in self.after])


EDITS = [
    # The limit beside the top, and the fast path.
    Edit(INCMINIMARK, 'from rpython.memory.gc import env', after=['from rpython.memory.gc import allocsample']),
    Edit(INCMINIMARK, 'self.nursery_top  = llmemory.NULL', after=['self.nursery_limit = llmemory.NULL']),
    Edit(INCMINIMARK, 'if new_free > self.nursery_top:', replace=('nursery_top', 'nursery_limit'), of=2),
    Edit(FRAMEWORK, "self._gc_adr_of_gc_attr(hop, 'nursery_top')", replace=('nursery_top', 'nursery_limit')),
    # Wherever the nursery goes on elsewhere.
    Edit(INCMINIMARK, 'self.nursery_top = self.nursery + self.nursery_size', after=['allocsample.enter(self)'],
         of=2, which=0),
    Edit(INCMINIMARK, 'self.nursery_top = self.nursery_barriers.popleft()', after=['allocsample.enter(self)'], of=2),
    Edit(INCMINIMARK, 'self.nursery_free = self.nursery_top', before=['allocsample.leave(self)'],
         after=['allocsample.enter(self)']),
    # The slow path.
    Edit(INCMINIMARK, 'minor_collection_count = 0',
         before=['if allocsample.is_point(self, totalsize):', '    return self.nursery_free - totalsize']),
    Edit(INCMINIMARK, 'll_assert(self.nursery_free <= self.nursery_top, "nursery overflow")',
         after=['allocsample.reserved(self, result, totalsize)']),
    Edit(INCMINIMARK, 'self.nursery_free = self.nursery_top - self.debug_tiny_nursery',
         before=['allocsample.leave(self)'], after=['allocsample.enter(self)']),
    # Large objects.
    Edit(INCMINIMARK, 'return result + size_gc_header',
         before=['allocsample.outside(self, result, totalsize, typeid)']),
    # Minor collections: between the last object that is kept and the first that is freed.
    Edit(INCMINIMARK, 'debug_start("gc-minor")', after=['allocsample.minor_begin(self)']),
    Edit(INCMINIMARK, 'self.rrc_minor_collection_free()', after=['allocsample.resolve_young(self)'], indent=-4),
    Edit(INCMINIMARK, 'self.root_walker.finished_minor_collection()', after=['allocsample.minor_end(self)']),
    # Major ones. What finalizers do is the program's time.
    Edit(INCMINIMARK, 'debug_start("gc-collect-step")', after=['allocsample.step_begin(self)']),
    Edit(INCMINIMARK, 'self.ac.mass_free_prepare()', before=['allocsample.resolve_old(self)']),
    Edit(INCMINIMARK, 'self.execute_finalizers()', before=['allocsample.step_end(self)']),
    Edit(INCMINIMARK, 'debug_stop("gc-collect-step")', before=['allocsample.step_end(self)']),
    Edit(INCMINIMARK, 'def _sweep_old_objects_pointing_to_pinned(self, obj, new_list):', before=[
        'def is_live_pinned(self, obj):',
        '    return self._is_pinned(obj) and self.header(obj).tid & GCFLAG_VISITED != 0',
        '',
        'def is_dead_rawmalloced(self, obj):',
        '    return (bool(self.young_rawmalloced_objects) and',
        '            self.young_rawmalloced_objects.contains(obj) and',
        '            self.header(obj).tid & GCFLAG_VISITED_RMY == 0)',
        '',
        'def is_marked(self, obj):',
        '    return self.header(obj).tid & GCFLAG_VISITED != 0',
        '']),
    # Names of types: in the executable, and told before the first allocation.
    Edit(INCMINIMARK, 'GCBase.setup(self)', after=['allocsample.tell_names(self)']),
    Edit(FRAMEWORK, 'gcdata.typeids_z = a_random_address              # patched in finish()',
         after=['gcdata.allocsample_names = a_random_address']),
    Edit(FRAMEWORK, "data_classdef.generalize_attr('typeids_z', SomeAddress())",
         after=["data_classdef.generalize_attr('allocsample_names', SomeAddress())"]),
    Edit(FRAMEWORK, 'newgcdependencies.append(ll_typeids_z)', after=[
        'from rpython.memory.gc.allocsample import names_array',
        'types = dict((typeid.index, TYPE) for TYPE, typeid in self.layoutbuilder.id_of_type.items())',
        'll_names = names_array([types.get(at) for at in range(len(group.members))])',
        'll_instance.inst_allocsample_names = llmemory.cast_ptr_to_adr(ll_names)',
        'newgcdependencies.append(ll_names)']),
]


def main(tree, header):
    here = os.path.dirname(os.path.abspath(__file__))
    files = {}
    for edit in EDITS:
        if edit.path not in files:
            with open(os.path.join(tree, edit.path)) as file:
                files[edit.path] = file.readlines()
        if any('allocsample' in line for line in files[edit.path]) and edit is EDITS[0]:
            raise ValueError('%s: already edited' % edit.path)
        edit.apply(files[edit.path])
    for path, lines in files.items():
        with open(os.path.join(tree, path), 'w') as file:
            file.writelines(lines)
    to = os.path.join(tree, 'rpython/memory/gc')
    for name in ('allocsample.py', 'allocsample_gc.c', 'allocsample_gc.h'):
        shutil.copy(os.path.join(here, name), to)
    shutil.copy(header, to)


if __name__ == '__main__':
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        main(sys.argv[1], sys.argv[2])
    except (IOError, ValueError) as error:
        sys.exit('edit.py: %s' % error)
