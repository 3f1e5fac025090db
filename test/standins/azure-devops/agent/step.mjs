/** One step of a job: a script in a shell of its own, ended as the real worker ends one (agent `ProcessInvoker`). */
import { spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';

const ladder = [
  ['SIGINT', 7500],
  ['SIGTERM', 2500],
  ['SIGKILL', 0],
];
const outputPatience = 2000;

/**
 * Runs `script` with `sh` in `folder`. `line` is given each line of its output. When `cancelled` fires, the process group is
 * interrupted, then terminated, then killed. Gives true when it ended with 0.
 */
export async function runScript({ id, script, folder, temp, env, line, cancelled, trace }) {
  const file = join(temp, `${id}.sh`);
  writeFileSync(file, script);
  const child = spawn('sh', [file], { cwd: folder, env, stdio: ['ignore', 'pipe', 'pipe'], detached: true });
  const ended = new Promise((resolve) => {
    child.on('error', (error) => {
      line(`##[error]${error.message}`);
      resolve(false);
    });
    const closed = new Promise((done) => child.on('close', done));
    child.on('exit', async (code, signal) => {
      // What the script left in the background may hold its output for ever.
      await Promise.race([closed, sleep(outputPatience, undefined, { ref: false })]);
      trace(`Step ${id} ended with ${signal ?? code}.`);
      if (code !== 0) line(`##[error]sh exited with code '${signal ?? code}'.`);
      resolve(code === 0);
    });
  });
  for (const stream of [child.stdout, child.stderr]) createInterface({ input: stream }).on('line', line);
  const end = async () => {
    for (const [signal, patience] of ladder) {
      if (child.exitCode !== null || child.signalCode !== null) return;
      try {
        process.kill(-child.pid, signal);
      } catch {
        return;
      }
      await Promise.race([ended, sleep(patience, undefined, { ref: false })]);
    }
  };
  cancelled.addEventListener('abort', end, { once: true });
  if (cancelled.aborted) await end();
  return await ended;
}
