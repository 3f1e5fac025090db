/**
 * Runs in the host under test: hands in short jobs of the own queue until the power goes, and prints what clients were told, a line of
 * JSON each. What has reached the other end of its output is what onejob must stand by.
 *
 *     node load.ts PREFIX SEED POOL…
 */
import { execFile } from 'node:child_process';
import { setTimeout as sleep } from 'node:timers/promises';
import { dice } from './dice.ts';

const [, , prefix = '', seed = '0', ...pools] = process.argv;
const draw = dice(Number(seed));
const say = (line: unknown): void => void process.stdout.write(`${JSON.stringify(line)}\n`);

interface Said {
  readonly code: number | null;
  readonly stdout: string;
}

const onejob = (...words: string[]): Promise<Said> =>
  new Promise((resolve) => {
    const child = execFile('onejob', words, { cwd: '/' }, (_, stdout) => resolve({ code: child.exitCode, stdout }));
  });

/** What a job leaves: one line when it begins and one when it ends, each on disk before it goes on. */
const script = (token: string, seconds: number, code: number): string =>
  `echo start ${token} >>/evidence/log; sync /evidence/log; sleep ${seconds}; echo end ${token} >>/evidence/log; sync /evidence/log; exit ${code}`;

/** One client after another; every fourth waits for the end of its job. */
async function clients(pool: string): Promise<never> {
  for (let n = 0; ; n += 1) {
    const token = `${prefix}-${pool}-${n}`;
    const code = n % 3;
    const words = ['--no-workspace', '--pool', pool, '--name', token, '--', 'sh', '-c', script(token, Math.floor(draw() * 5), code)];
    if (n % 4 === 3) {
      const ended = await onejob('run', ...words);
      // 125: it could not be handed in, or it was lost.
      if (ended.code !== null && ended.code !== 125) say({ ended: token, pool, code: ended.code, expected: code });
    } else {
      const { code: accepted, stdout } = await onejob('run', '--detach', ...words);
      if (accepted === 0) say({ accepted: token, pool, id: stdout.trim(), expected: code });
      // Not up yet.
      else await sleep(300);
    }
    await short(pool);
  }
}

interface Job {
  readonly id: string;
  readonly pool: string;
  readonly result: unknown;
}

/** A queue, but one that empties soon after the load has ended. */
async function short(pool: string): Promise<void> {
  while ((waiting.get(pool) ?? 0) >= 8) await sleep(200);
}

const waiting = new Map<string, number>();

/** Tells each result that the daemon tells. */
async function watch(): Promise<never> {
  const told = new Set<string>();
  for (;;) {
    const { code, stdout } = await onejob('jobs', '--all', '--json', '--limit', '40');
    const jobs = code === 0 ? (JSON.parse(stdout) as Job[]) : [];
    for (const pool of pools) waiting.set(pool, jobs.filter((one) => one.pool === pool && one.result === null).length);
    for (const { id, result } of jobs) {
      if (result === null || told.has(id)) continue;
      told.add(id);
      say({ told: id, result });
    }
    await sleep(500);
  }
}

await Promise.all([watch(), ...pools.map(clients)]);
