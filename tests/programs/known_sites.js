// Allocates known numbers of bytes in functions of known names, and prints the truth as JSON.
//
// What a Buffer holds is a block of malloc's of just its size. An array of V8's heap has 4 words and, apart from them,
// 2 words and its elements; an object has 3 words and its fields.

const truth = {};
const kept = [];

function bufferAndKept() { return Buffer.allocUnsafeSlow(16000); }
function largeBufferAndKept() { return Buffer.allocUnsafeSlow(40000); }
function bufferAndFreed() { return Buffer.allocUnsafeSlow(60000); }
function memoryAndFreed() { return new ArrayBuffer(18000); }

class Triple {
  constructor(a) { this.a = a; this.b = a; this.c = a; }
}

function arrayAndKept() { return new Array(500); }
function largeArrayAndFreed() { return new Array(30000); }
function objectAndFreed() { return new Triple(1); }

const none = [];

function site(make, count, bytes, keep) {
  for (let i = 0; i < count; i++) {
    // A call that the compiler does not replace by the function.
    const block = Reflect.apply(make, null, none);
    if (keep) kept.push(block);
  }
  truth[make.name] = {
    bytes: count * bytes, allocations: count,
    live_bytes: keep ? count * bytes : 0, live_blocks: keep ? count : 0,
  };
}

function main(times) {
  site(bufferAndKept, 600 * times, 16000, true);
  site(largeBufferAndKept, 250 * times, 40000, true);
  site(bufferAndFreed, 1000 * times, 60000, false);
  site(memoryAndFreed, 2500 * times, 18000, false);
  site(arrayAndKept, 2000 * times, 4048, true);
  site(largeArrayAndFreed, 200 * times, 240048, false);
  site(objectAndFreed, 400000 * times, 48, false);
}

main(Number(process.argv[2]));
// Twice: what is dead is freed by another thread, after the collection that has found it.
if (global.gc) { gc(); gc(); }
setTimeout(() => {
  process.stdout.write(JSON.stringify(truth) + "\n");
  // What is kept is alive at the end.
  process.reallyExit(0);
}, 100);
