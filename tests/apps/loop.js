// Hot functions for the JIT compiler, typed arrays, maps, promises, timers, a worker-pool call. One line per turn.
'use strict';
const crypto = require('crypto');
const turns = Number(process.argv[2] || 110);
const grid = new Float64Array(200000).map((_, i) => (i * 7919 % 10007) / 10007);
const table = new Map();
let ticks = 0;
const timer = setInterval(() => { ticks++; }, 5);

function sweep(a) {
  for (let i = 1; i < a.length - 1; i++) a[i] = (a[i - 1] + a[i] * 2 + a[i + 1]) * 0.25;
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i];
  return sum;
}

const derive = (text) => new Promise((ok, no) =>
  crypto.pbkdf2(text, 'salt', 2000, 16, 'sha256', (e, key) => e ? no(e) : ok(key.toString('hex'))));

async function main() {
  for (let turn = 0; turn < turns; turn++) {
    let sum = 0;
    for (let k = 0; k < 20; k++) sum = sweep(grid);
    for (let i = 0; i < 5000; i++) table.set((turn * 7919 + i * 104729) % 20011, { turn, i, s: `${turn}:${i}` });
    const key = await derive(`turn ${turn}`);
    await new Promise((ok) => setTimeout(ok, 10));
    console.log(turn, sum.toString(), table.size, key);
  }
  clearInterval(timer);
  if (ticks === 0) throw new Error('no tick');
  console.log('PASS');
}
main();
