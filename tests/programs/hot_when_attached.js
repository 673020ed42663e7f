// Four functions that V8 has compiled into one when `ready` is printed. After a line on its input the program runs them as often as
// `bytes` says, in turns of the event loop, and prints that as JSON.
'use strict';
const fs = require('node:fs');

const WARM = 20_000;
const ROUNDS = 60_000;
const EACH_TURN = 500;
const CACHED = 1_000;
const ARRAY_BYTES = (elements) => (4 + 2 + elements) * 8;

function churnSmall() { return new Array(20); }
function churnLarge() { return new Array(600); }
function fillCache() { return new Array(40); }
function leakSession() { return new Array(60); }

const kept = { cache: new Array(CACHED).fill(null), leaked: [] };
let last;

function round(i) {
  last = churnSmall();
  if (i % 20 === 0) last = churnLarge();
  kept.cache[i % CACHED] = fillCache();
  return leakSession();
}

function warm() {
  for (let i = 0; i < WARM; i++) last = round(i);
  // So that there is no hurry to compile.
  for (let turn = 0; turn < 200; turn++) setTimeout(() => { for (let i = 0; i < EACH_TURN; i++) last = round(i); }, turn);
  setTimeout(() => fs.writeSync(1, 'ready\n'), 500);
}

function run(begin) {
  for (let i = begin; i < begin + EACH_TURN; i++) kept.leaked.push(round(i));
  if (begin + EACH_TURN < ROUNDS) return setTimeout(run, 1, begin + EACH_TURN);
  last = null;
  gc();
  gc();
  const site = (elements, count, live) => ({ bytes: ARRAY_BYTES(elements) * count, live_bytes: ARRAY_BYTES(elements) * live });
  setTimeout(() => {
    fs.writeSync(1, JSON.stringify({
      churnSmall: site(20, ROUNDS, 0),
      churnLarge: site(600, ROUNDS / 20, 0),
      fillCache: site(40, ROUNDS, CACHED),
      leakSession: site(60, ROUNDS, ROUNDS),
    }) + '\n');
    process.reallyExit(7);
  }, 100);
}

process.stdin.once('data', () => {
  // The isolate is joined when its thread next takes enough from malloc.
  last = Buffer.allocUnsafeSlow(8 << 20);
  setTimeout(run, 200, 0);
});
warm();
