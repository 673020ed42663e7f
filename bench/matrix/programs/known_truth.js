// Two churn sites, a bounded cache and a leak, whose bytes are known. The protocol is in bench/matrix/version.py.
//
// In V8's heap an array has 4 words and, apart from them, 2 words and its elements.
'use strict';
const fs = require('node:fs');

const ROUNDS = 200_000;
const CACHED = 2_000;
const ARRAY_BYTES = (elements) => (4 + 2 + elements) * 8;

function churnSmall() { return new Array(20); }
function churnLarge() { return new Array(600); }
function fillCache() { return new Array(40); }
function leakSession() { return new Array(60); }

const source = fs.readFileSync(__filename, 'utf8').split('\n');

function site(make, elements, count, live) {
  const bytes = ARRAY_BYTES(elements);
  const line = source.findIndex((text) => text.startsWith(`function ${make.name}(`)) + 1;
  return { bytes: bytes * count, live_bytes: bytes * live, line };
}

// The process's memory is read some times a second: the growth of a program that ends before that confirms no leak.
const pause = new Int32Array(new SharedArrayBuffer(4));
let last;

function main() {
  const cache = new Array(CACHED).fill(null);
  const leaked = new Array(ROUNDS).fill(null);
  for (let i = 0; i < ROUNDS; i++) {
    last = churnSmall();
    if (i % 20 === 0) last = churnLarge();
    cache[i % CACHED] = fillCache();
    leaked[i] = leakSession();
    if (i % 1_000 === 0) Atomics.wait(pause, 0, 0, 5);
  }
  last = null;
  return { cache, leaked };
}

if (process.argv.includes('wait')) {
  fs.writeSync(1, 'ready\n');
  fs.readSync(0, Buffer.alloc(1));
}
// The isolate is joined when its thread next takes enough from malloc.
last = Buffer.allocUnsafeSlow(8 << 20);
last = null;
const kept = main();
// Twice: what died is only known after the collection that found it.
gc();
gc();
setTimeout(() => {
  const truth = process.env.KNOWN_TRUTH_OWN ? { own_live_bytes: process.memoryUsage().heapUsed } : {
    sites: {
      churnSmall: site(churnSmall, 20, ROUNDS, 0),
      churnLarge: site(churnLarge, 600, ROUNDS / 20, 0),
      fillCache: site(fillCache, 40, ROUNDS, kept.cache.length),
      leakSession: site(leakSession, 60, ROUNDS, kept.leaked.length),
    },
    leak: 'leakSession',
    cache: 'fillCache',
  };
  fs.writeSync(1, JSON.stringify(truth) + '\n');
  // What is kept is alive at the end.
  process.reallyExit(7);
}, 100);
