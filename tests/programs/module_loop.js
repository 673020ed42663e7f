// A loop outside of all functions: V8 optimizes it while it runs, and inlines into it what it calls. The main thread and three workers,
// one after the other, do the same.
const { isMainThread, Worker } = require('node:worker_threads');
const fs = require('node:fs');

let kept = [];
function inLoop() {
    return new Array(128);
}
for (let round = 0; round < 100; round++) {
    kept = [];
    for (let i = 0; i < 2000; i++) kept.push(inLoop());
}

function startWorkers(left) {
    if (left === 0) return;
    const worker = new Worker(fs.readFileSync(__filename, 'utf8'), { eval: true });
    worker.on('exit', () => startWorkers(left - 1));
}
if (isMainThread) startWorkers(3);
