"""RPython's incminimark as a host of allocsample's hook ABI: the part that is RPython.

A bump allocation compares with gc.nursery_limit, which is gc.nursery_top or, while somebody profiles, the next sample
point below it. All else in the collector goes on using gc.nursery_top, so that no collection comes earlier or later.
"""
import os
from rpython.rlib.objectmodel import we_are_translated
from rpython.rlib.rarithmetic import intmask
from rpython.rtyper.lltypesystem import llmemory, lltype, rffi
from rpython.rtyper.lltypesystem.llmemory import raw_malloc_usage
from rpython.translator.tool.cbuild import ExternalCompilationInfo

_here = os.path.dirname(os.path.abspath(__file__))
_eci = ExternalCompilationInfo(
    includes=['allocsample_gc.h'],
    include_dirs=[_here],
    separate_module_files=[os.path.join(_here, 'allocsample_gc.c')],
)


def _external(name, arguments, result):
    # No wrapper: the calls are made inside the collector, where nothing may allocate or give up the lock.
    return rffi.llexternal('rpy_allocsample_' + name, arguments, result,
                           compilation_info=_eci, _nowrapper=True)


_address, _signed, _void = llmemory.Address, lltype.Signed, lltype.Void
_leave = _external('leave', [_address], _void)
_enter = _external('enter', [_address, _address], _address)
_point = _external('point', [_address, _signed, _address], _address)
_outside = _external('outside', [_address, _signed, _signed, _address, _address], _address)
_next = _external('next', [_signed], _address)
_answer = _external('answer', [_address, _signed, _signed], _void)
_names = _external('names', [_address, _signed], _void)
_minor_begin = _external('minor_begin', [], _void)
_minor_end = _external('minor_end', [_signed] * 4, _void)
_step_begin = _external('step_begin', [_signed], _void)
_step_end = _external('step_end', [_signed] * 3, _void)

MINOR, MAJOR = 1, 2
DEAD, PROMOTED = 0, 2

# Text of all type names, as an array that lives in the executable.
NAMES = lltype.Array(lltype.Char)


# ---- allocation ----

def is_point(gc, totalsize):
    """The allocation that has just moved gc.nursery_free failed the limit. True if it stays where it is: the limit was a
    sample point. Otherwise the nursery is being left."""
    if not we_are_translated():
        return False
    result = gc.nursery_free - totalsize
    if gc.nursery_free <= gc.nursery_top:
        gc.nursery_limit = _point(result, raw_malloc_usage(totalsize), gc.nursery_top)
        return True
    _leave(result)
    return False


def reserved(gc, result, totalsize):
    """The same allocation has its place now, perhaps beyond the new limit."""
    if we_are_translated() and gc.nursery_free > gc.nursery_limit:
        gc.nursery_limit = _point(result, raw_malloc_usage(totalsize), gc.nursery_top)


def leave(gc):
    # While a place is being looked for it is NULL, and was told of before.
    if we_are_translated() and gc.nursery_free != llmemory.NULL:
        _leave(gc.nursery_free)


def enter(gc):
    """The nursery goes on at gc.nursery_free, up to gc.nursery_top."""
    if we_are_translated():
        gc.nursery_limit = _enter(gc.nursery_free, gc.nursery_top)
    else:
        gc.nursery_limit = gc.nursery_top


def outside(gc, result, totalsize, typeid):
    if we_are_translated():
        gc.nursery_limit = _outside(result, raw_malloc_usage(totalsize), gc.get_member_index(typeid),
                                    gc.nursery_free, gc.nursery_limit)


# ---- survival ----

def resolve_young(gc):
    """Those that live have been moved or marked, and the dead are still there."""
    if not we_are_translated():
        return
    size_gc_header = gc.gcheaderbuilder.size_gc_header
    while True:
        address = _next(MINOR)
        if address == llmemory.NULL:
            break
        obj = address + size_gc_header
        if gc.is_in_nursery(obj):
            if gc.is_forwarded(obj):
                _tell(gc, gc.get_forwarding_address(obj), PROMOTED)
            elif not gc.is_live_pinned(obj):
                _tell(gc, obj, DEAD)
            # A pinned object stays young: it is asked for again.
        elif gc.is_dead_rawmalloced(obj):
            _tell(gc, obj, DEAD)
        else:
            _tell(gc, obj, PROMOTED)


def resolve_old(gc):
    """Everything reachable is marked, and nothing is swept. Old objects do not move: of those that live there is nothing
    to tell."""
    if not we_are_translated():
        return
    size_gc_header = gc.gcheaderbuilder.size_gc_header
    while True:
        address = _next(MAJOR)
        if address == llmemory.NULL:
            break
        obj = address + size_gc_header
        if not gc.is_marked(obj):
            _tell(gc, obj, DEAD)


def _tell(gc, obj, fate):
    index = gc.get_member_index(gc.get_type_id(obj))
    _answer(obj - gc.gcheaderbuilder.size_gc_header, index, fate)


def tell_names(gc):
    if we_are_translated():
        gcdata = gc.root_walker.gcdata
        names = llmemory.cast_adr_to_ptr(gcdata.allocsample_names, lltype.Ptr(NAMES))
        address = gcdata.allocsample_names + llmemory.itemoffsetof(NAMES, 0)
        if len(names) > 0:
            _names(address, gcdata.max_type_id)


# ---- collections ----

def minor_begin(gc):
    leave(gc)
    if we_are_translated():
        _minor_begin()


def minor_end(gc):
    if we_are_translated():
        large = intmask(gc.rawmalloced_total_size)
        _minor_end(intmask(gc.nursery_surviving_size), intmask(gc.get_total_memory_used()) - large, large,
                   gc.pinned_objects_in_nursery)


def step_begin(gc):
    if we_are_translated():
        _step_begin(gc.gc_state)


def step_end(gc):
    if we_are_translated():
        large = intmask(gc.rawmalloced_total_size)
        _step_end(gc.gc_state, intmask(gc.get_total_memory_used()) - large, large)


# ---- translation ----

def names_array(types):
    """NAMES of types in the order of their numbers, None where there is none."""
    text = ''.join([_short(TYPE) + '\0' for TYPE in types])
    array = lltype.malloc(NAMES, len(text), immortal=True)
    for at in range(len(text)):
        array[at] = text[at]
    return array


def _short(TYPE):
    """`GcStruct app.Node { super, inst_left }` is `app.Node`."""
    if TYPE is None:
        return '?'
    name = str(TYPE).split(' {')[0]
    for kind in ('GcStruct ', 'GcArray of '):
        if name.startswith(kind):
            name = name[len(kind):]
            if kind == 'GcArray of ':
                name = 'array of ' + name
    return name.replace('\0', '') or '?'
