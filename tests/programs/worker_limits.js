// A worker that grows beyond its limit is ended by Node.js, time and again. Prints how each ended.
'use strict';
const { Worker } = require('worker_threads');

const source = 'const held = []; for (;;) held.push([held]);';

let left = 3;
(function next() {
  if (left-- === 0) return;
  const limits = { maxOldGenerationSizeMb: 16, maxYoungGenerationSizeMb: 4, stackSizeMb: 1 };
  const worker = new Worker(source, { eval: true, resourceLimits: limits });
  worker.on('error', (error) => console.log(error.code));
  worker.on('exit', next);
})();
