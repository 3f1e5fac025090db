/**
 * Runs in the host under test: hands in short jobs of the own queue until the power goes, and prints what clients were told, a line of
 * JSON each. What has reached the other end of its output is what onejob must stand by.
 *
 *     node load.ts PREFIX POOL…
 */
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { call } from './api.ts';

/** How many wait for jobs of a pool: more than it has agents, so that there is a queue, and no longer one than what is judged needs. */
const clients = 3;

const [, , prefix = '', ...pools] = process.argv;
const say = (line: unknown): void => void process.stdout.write(`${JSON.stringify(line)}\n`);

/** Follows from the job's name, and so from the seed. */
const idOf = (token: string): string => createHash('sha256').update(token).digest('hex').slice(0, 12);

/** What a job leaves: one line when it begins and one when it ends, each on disk before it goes on. */
const script = (token: string, code: number): string =>
  `echo start ${token} >>/evidence/log; sync /evidence/log; sleep ${Number.parseInt(idOf(token), 16) % 5}; echo end ${token} >>/evidence/log; sync /evidence/log; exit ${code}`;

/** Hands in a job and waits for its result, again and again. */
async function client(pool: string, number: number): Promise<never> {
  for (let n = 0; ; n += 1) {
    const token = `${prefix}-${pool}-${number}-${n}`;
    const id = idOf(token);
    const code = n % 3;
    const job = { id, pool, name: token, command: ['sh', '-c', script(token, code)] };
    let answer = await call('POST', '/v1/jobs', job);
    // The daemon is not up yet, or cannot promise it now. A job that is handed in again is the same job.
    for (; answer?.status !== 201; answer = await call('POST', '/v1/jobs', job)) await sleep(200);
    say({ accepted: token, pool, id, expected: code });
    const settled = await call('GET', `/v1/jobs/${id}/settled`);
    if (settled?.status === 200) say({ told: id, result: (settled.body as { result: unknown }).result });
  }
}

/** Somebody at a terminal. */
async function person(): Promise<never> {
  for (let n = 0; ; n += 1) {
    const pool = pools[n % pools.length] ?? '';
    const token = `${prefix}-${pool}-person-${n}`;
    const expected = n % 3;
    const words = ['run', '--no-workspace', '--pool', pool, '--name', token, '--', 'sh', '-c', script(token, expected)];
    // A command that finds no daemon while the service starts would start one of its own.
    while ((await call('GET', '/v1/status'))?.status !== 200) await sleep(200);
    const code = await new Promise<number | null>((resolve) => {
      const child = execFile('onejob', words, { cwd: '/' }, () => resolve(child.exitCode));
    });
    // 125: it could not be handed in, or it was lost.
    if (code !== null && code !== 125) say({ ended: token, pool, code, expected });
    else await sleep(1_000);
  }
}

const lines = pools.flatMap((pool) => Array.from({ length: clients }, (_, number) => client(pool, number)));
await Promise.all([person(), ...lines]);
