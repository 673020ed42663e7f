# Two churn sites, a bounded cache and a leak, whose bytes are known. The protocol is in bench/matrix/version.py.
#
# With --mm:arc and --mm:orc a `seq` has a word before its items. What is done with it later keeps the call from being the last one.

import std/[os, strformat]

const
  rounds = 100_000
  cached = 2_000

var
  sink {.volatile.}: int
  cache: array[cached, seq[byte]]
  leaked: seq[seq[byte]]

proc churnSmall(): seq[byte] {.noinline.} =
  result = newSeq[byte](84); result[0] = 1

proc churnLarge(): seq[byte] {.noinline.} =
  result = newSeq[byte](4984); result[0] = 1

proc fillCache(): seq[byte] {.noinline.} =
  result = newSeq[byte](884); result[0] = 1

proc leakSession(): seq[byte] {.noinline.} =
  result = newSeq[byte](984); result[0] = 1

proc site(name: string, line, bytes, count, live: int): string =
  let each = bytes + 8
  &"\"{name}\": {{\"bytes\": {each * count}, \"live_bytes\": {each * live}, \"line\": {line}}}"

proc main() =
  if paramCount() > 0:
    echo "ready"
    discard stdin.readLine()
  leaked = newSeqOfCap[seq[byte]](rounds)
  for i in 0 ..< rounds:
    for j in 0 ..< 10:
      sink += churnSmall().len
    if i mod 20 == 0:
      sink += churnLarge().len
    cache[i mod cached] = fillCache()
    leaked.add(leakSession())
    # It takes some seconds to tell a leak from a cache that fills.
    if i mod 100 == 0:
      sleep(3)
  let sites = site("churnSmall", 17, 84, 10 * rounds, 0) & ", " & site("churnLarge", 20, 4984, rounds div 20, 0) & ", " &
      site("fillCache", 23, 884, rounds, cached) & ", " & site("leakSession", 26, 984, rounds, rounds)
  echo "{\"sites\": {" & sites & "}, \"leak\": \"leakSession\", \"cache\": \"fillCache\"}"
  # What is kept is alive at the end.
  quit(7)

main()
