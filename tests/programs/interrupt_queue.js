// Loads the addon interrupt_queue, whose path is the argument, and prints how many of its interrupts were served.
const addon = { exports: {} };
process.dlopen(addon, process.argv[2]);
let sum = 0;
for (let i = 0; i < 1000000; i++) sum += i;
console.log(addon.exports());
