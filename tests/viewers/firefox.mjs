// Lets the Firefox Profiler's own code read a profile (its published command-line interface, npm's
// @firefox-devtools/profiler-cli), and prints the totals that it computes as JSON: for each thread with allocations the bytes
// of each of the viewer's summaries, and for each of its tracks the bytes of its samples.
// usage: node firefox.mjs PROFILE.json[.gz]   (VIEWERS: a directory with node_modules)
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';

const cli = path.join(process.env.VIEWERS, 'node_modules/@firefox-devtools/profiler-cli/dist/profiler-cli.js');
// Short: the path of a socket has a hundred characters.
const sessions = fs.mkdtempSync(path.join(os.tmpdir(), 'pq-'));
const env = { ...process.env, HOME: sessions, PROFILER_CLI_SESSION_DIR: sessions, PROFILER_CLI_NO_SYMBOLICATE: '1' };
// Its daemon is started and asked without the interface, which takes one that does not answer at once for dead and removes
// its socket: on a machine that has much else to do that is for ever.
const daemon = spawn(process.execPath, [cli, '--daemon', path.resolve(process.argv[2]), '--session', 's'], { env, stdio: 'ignore' });
let ended = null;
daemon.once('exit', (code) => { ended = code ?? 1; });
const sleep = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });
const log = () => { try { return fs.readFileSync(path.join(sessions, 's.log'), 'utf8'); } catch { return ''; } };

// An answer is one line.
function send(message) {
  return new Promise((resolve, reject) => {
    const socket = net.connect(path.join(sessions, 's.sock'), () => socket.write(`${JSON.stringify(message)}\n`));
    let text = '';
    socket.setEncoding('utf8');
    socket.on('data', (data) => { text += data; if (text.includes('\n')) { socket.end(); resolve(JSON.parse(text)); } });
    socket.on('error', reject);
    socket.on('close', () => reject(new Error(`no answer to ${JSON.stringify(message)}: ${log()}`)));
  });
}
async function ask(command) {
  const answer = await send({ type: 'command', command });
  if (answer.type !== 'success') throw new Error(`${JSON.stringify(command)}: ${answer.error}`);
  return typeof answer.result === 'string' ? JSON.parse(answer.result) : answer.result;
}
try {
  while (!/Profile loaded successfully/.test(log())) {
    if (ended !== null || /^\[ERROR\]|Failed to load/m.test(log())) throw new Error(`the viewer refused it: ${log()}`);
    await sleep(100);
  }
  const seen = { threads: [] };
  for (const { threadHandle, name, processName } of (await ask({ command: 'thread', subcommand: 'list', limit: 0 })).threads) {
    const thread = { name, processName, strategies: {} };
    await ask({ command: 'thread', subcommand: 'select', thread: threadHandle });
    for (const strategy of ['timing', 'native-allocations', 'native-retained-allocations', 'native-deallocations-memory']) {
      // A thread without samples, or without allocations, does not have all of these.
      try { await ask({ command: 'strategy', strategy }); } catch { continue; }
      const samples = await ask({ command: 'thread', subcommand: 'samples', includeIdle: true });
      if (samples.callTreeSummaryStrategy !== strategy) continue;
      thread.strategies[strategy] = { total: samples.categoryBreakdown.totalSamples, unit: samples.weightType };
    }
    seen.threads.push(thread);
  }
  console.log(JSON.stringify(seen));
} finally {
  daemon.kill();
  fs.rmSync(sessions, { recursive: true, force: true });
}
