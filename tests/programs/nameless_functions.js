// Functions without a name and code outside of functions, in files of one layout. Each allocates a known number of bytes.
//
// An array of V8's heap has 4 words and, apart from them, 2 words and its elements.
const vm = require('node:vm');

const LENGTH = 1000, TIMES = 2000;
globalThis.kept = [];
globalThis.times = function times(count, callback) {
  for (let i = 0; i < count; i++) kept.push(Reflect.apply(callback, null, []));
};

const text = `times(${TIMES}, () => new Array(${LENGTH})); times(${TIMES}, () => new Array(${LENGTH}));
for (let i = 0; i < ${TIMES}; i++) kept.push(new Array(${LENGTH}));
times(${TIMES}, () => Buffer.allocUnsafeSlow(20000));`;
for (const filename of ['/srv/one/app.js', '/srv/node_modules/two/app.js']) vm.runInThisContext(text, { filename });
eval(`times(${TIMES}, () => new Array(${LENGTH}))`);

const truth = {};
function add(name, bytes) {
  truth[name] = { bytes: TIMES * bytes, allocations: TIMES, live_bytes: TIMES * bytes, live_blocks: TIMES };
}
for (const file of ['one/app.js', 'two/app.js']) {
  const column = text.indexOf('()') + 1, other = text.indexOf('()', column + 1) + 1;
  for (const place of [`1:${column}`, `1:${other}`]) add(`(anonymous)[${file}:${place}]`, 48 + 8 * LENGTH);
  add(`(top level)[${file}]`, 48 + 8 * LENGTH);
  add(`(anonymous)[${file}:3:${column}]`, 20000);
}
add(`(anonymous)[eval:1:${text.indexOf('()') + 1}]`, 48 + 8 * LENGTH);
process.stdout.write(JSON.stringify(truth) + '\n');
// What is kept is alive at the end.
setTimeout(() => process.reallyExit(0), 100);
