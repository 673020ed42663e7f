"""Ruby's library for CSV, reading a table, against ObjectSpace, which notes where each object was made."""

import json
import pathlib
import re
import shutil

from .opinion import Missing, Opinion, profile, run, top_functions

ROWS = 40_000
# What objects hold outside of their slots of 40 bytes is what malloc gave. By methods: ObjectSpace has the line where an object was
# made, and we have the one where it got its memory.
PROGRAM = """
require 'csv'
require 'objspace' if ENV['TRACED']
ObjectSpace.trace_object_allocations_start if ENV['TRACED']
$table = CSV.read('table.csv')
GC.start
if ENV['TRACED']
  ObjectSpace.trace_object_allocations_stop
  sums = Hash.new(0)
  ObjectSpace.each_object do |object|
    file = ObjectSpace.allocation_sourcefile(object)
    sums["#{file}:#{ObjectSpace.allocation_sourceline(object)}"] += ObjectSpace.memsize_of(object) - 40 if file
  end
  require 'json'
  File.write('counted.json', JSON.dump(sums))
end
# What lives then is alive at the end.
exit!(0)
"""


def method_at(place):
    """The method in which a line is: the last that begins before it."""
    file, line = place.rsplit(":", 1)
    if not pathlib.Path(file).exists():
        return None
    begins = re.findall(r"^\s*def (\w+)", "\n".join(pathlib.Path(file).read_text().splitlines()[:int(line)]), re.MULTILINE)
    return begins[-1] if begins else None


def opinions(place):
    if shutil.which("ruby") is None:
        raise Missing("ruby (Debian: ruby)")
    rows = (f"{i},{'name' * 9} {i},\"{'text, ' * 20} {i}\",{i * 7919 % 1009}\n" for i in range(ROWS))
    (place / "table.csv").write_text("".join(rows))
    (place / "reads.rb").write_text(PROGRAM)
    program = ["ruby", "reads.rb"]
    profile(program, place, "16K")
    top = top_functions(place, "malloc", "samples.live")[0]
    run(program, place, {"TRACED": "1"})
    counted = json.loads((place / "counted.json").read_text())
    theirs = sum(size for place_of, size in counted.items() if method_at(place_of) == top["function"])
    yield Opinion("Ruby", f"csv, of Ruby's library: {ROWS:,} rows", f"{top['function']}, alive at the end", top["bytes"],
                  top["error"], "ObjectSpace, each object", theirs)
