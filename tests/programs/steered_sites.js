// Three functions that allocate the same in V8's heap, with a line on standard input before each of the last two. Prints its
// process number before it reads.
//
// An array has 4 words and, apart from them, 2 words and its elements: 4,048 bytes.

const fs = require('node:fs');

const kept = [];

function first() { return new Array(500); }
function second() { return new Array(500); }
function third() { return new Array(500); }

const none = [];

// One in ten is kept: of the first until the second has ended, of the others until the end.
function site(make, count) {
  const mine = [];
  for (let i = 0; i < count; i++) {
    const block = Reflect.apply(make, null, none);
    if (i % 10 === 0) mine.push(block);
  }
  kept.push(mine);
}

function wait() {
  const byte = Buffer.alloc(1);
  fs.writeSync(1, process.pid + '\n');
  while (fs.readSync(0, byte) === 1 && byte[0] !== 10);
}

const count = Number(process.argv[2]);
site(first, count);
wait();
site(second, count);
kept[0] = null;
wait();
site(third, count);
gc();
gc();
setTimeout(() => process.reallyExit(kept[1].length === kept[2].length ? 0 : 1), 100);
