/**
 * Runs in the host under test: hands in short jobs of the own queue until the power goes, and prints what clients were told, a line of
 * JSON each. What has reached the other end of its output is what onejob must stand by.
 *
 *     node load.ts PREFIX SEED POOL…
 */
import { execFile } from 'node:child_process';
import { request } from 'node:http';
import { text } from 'node:stream/consumers';
import { setTimeout as sleep } from 'node:timers/promises';
import { dice } from './dice.ts';

const [, , prefix = '', seed = '0', ...pools] = process.argv;
const draw = dice(Number(seed));
const say = (line: unknown): void => void process.stdout.write(`${JSON.stringify(line)}\n`);

/** What a job leaves: one line when it begins and one when it ends, each on disk before it goes on. */
const script = (token: string, code: number): string =>
  `echo start ${token} >>/evidence/log; sync /evidence/log; sleep ${Math.floor(draw() * 5)}; echo end ${token} >>/evidence/log; sync /evidence/log; exit ${code}`;

/** One call of the API; null when there is no answer. */
function call(method: string, path: string, body?: unknown): Promise<{ readonly status: number; readonly body: unknown } | null> {
  return new Promise((resolve) => {
    const headers = { host: 'localhost', ...(body !== undefined && { 'content-type': 'application/json' }) };
    const sent = request({ socketPath: '/run/onejob/onejob.sock', method, path, headers, agent: false }, async (answer) => {
      const said = await text(answer).catch(() => null);
      resolve(said === null ? null : { status: answer.statusCode ?? 0, body: said === '' ? null : JSON.parse(said) });
    });
    sent.once('error', () => resolve(null));
    sent.end(body === undefined ? undefined : JSON.stringify(body));
  });
}

/** Clients of a pool, who hand in a job and wait for its result: more of them than it has agents, so that there is a queue. */
async function client(pool: string, number: number): Promise<never> {
  for (let n = 0; ; n += 1) {
    const token = `${prefix}-${pool}-${number}-${n}`;
    const id = Array.from({ length: 12 }, () => Math.floor(Math.random() * 16).toString(16)).join('');
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
    const code = await new Promise<number | null>((resolve) => {
      const child = execFile('onejob', words, { cwd: '/' }, () => resolve(child.exitCode));
    });
    // 125: it could not be handed in, or it was lost.
    if (code !== null && code !== 125) say({ ended: token, pool, code, expected });
    else await sleep(1_000);
  }
}

const lines = pools.flatMap((pool) => Array.from({ length: 5 }, (_, number) => client(pool, number)));
await Promise.all([person(), ...lines]);
