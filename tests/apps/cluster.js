// A cluster of three workers and its clients: connections are handed to the workers, answers and messages come back.
// One line per turn.
'use strict';
const cluster = require('cluster');
const crypto = require('crypto');
const http = require('http');
const turns = Number(process.argv[2] || 80);

if (cluster.isWorker) {
  let handled = 0;
  const server = http.createServer((request, response) => {
    handled++;
    response.end(crypto.createHash('sha256').update(request.url).digest('hex'));
  });
  // After five seconds of silence a server closes its end, as it does when it has been stopped for so long.
  server.keepAliveTimeout = 0;
  server.listen(0, '127.0.0.1');
  process.on('message', (message) => {
    if (message.turn !== undefined)
      process.send({ turn: message.turn, sum: message.turn * cluster.worker.id, handled });
    else process.exit(0);
  });
} else {
  main().catch((error) => { console.log('FAIL', error); process.exit(1); });
}

function get(port, path, agent) {
  return new Promise((ok, no) => http.get({ host: '127.0.0.1', port, path, agent }, (response) => {
    let text = '';
    response.on('data', (part) => { text += part; }).on('end', () => ok(text)).on('error', no);
  }).on('error', no));
}

function ask(worker, turn) {
  return new Promise((ok) => { worker.once('message', ok); worker.send({ turn }); });
}

async function main() {
  const workers = [1, 2, 3].map(() => cluster.fork());
  const ports = await Promise.all(
    workers.map((worker) => new Promise((ok) => worker.once('listening', (a) => ok(a.port)))));
  const lasting = new http.Agent({ keepAlive: true, maxSockets: 4 });
  for (let turn = 0; turn < turns; turn++) {
    const paths = [0, 1, 2, 3, 4, 5].map((i) => `/${turn}/${i}`);
    const found = await Promise.all(paths.map((path, i) => get(ports[0], path, i < 3 ? lasting : undefined)));
    paths.forEach((path, i) => {
      if (found[i] !== crypto.createHash('sha256').update(path).digest('hex')) throw new Error(path);
    });
    const answers = await Promise.all(workers.map((worker) => ask(worker, turn)));
    const handled = answers.reduce((sum, answer) => sum + answer.handled, 0);
    console.log(turn, found[5].slice(0, 16), answers.map((answer) => answer.sum).join(','), handled);
    await new Promise((ok) => setTimeout(ok, 10));
  }
  lasting.destroy();
  const codes = workers.map((worker) => new Promise((ok) => worker.once('exit', ok)));
  workers.forEach((worker) => worker.send({}));
  if ((await Promise.all(codes)).some((code) => code !== 0)) throw new Error('exit code');
  console.log('PASS');
}
