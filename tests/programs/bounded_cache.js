// A cache of 20,000 entries, each of which takes 1,072 bytes of the heap; an entry that comes in puts the oldest out. Prints the
// process's number once the cache is full, and goes on until its input ends.
"use strict";
const ENTRIES = 20000;
const cache = new Map();
let next = 0;

function makeEntry(number) {
  const entry = new Array(128);
  entry.fill(number);
  return entry;
}

function serve(requests) {
  for (let i = 0; i < requests; i++) {
    cache.set(next, makeEntry(next));
    cache.delete(next - ENTRIES);
    next++;
  }
}

function work() {
  serve(200);
  if (next === 2 * ENTRIES) console.log(process.pid);
  setTimeout(work, 1);
}

process.stdin.on("end", () => process.exit(0));
process.stdin.resume();
work();
