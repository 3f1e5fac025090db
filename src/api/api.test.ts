/** Server and client together, over a real socket. */
import { once } from 'node:events';
import { chmodSync, existsSync, statSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { connect, createServer, type Socket } from 'node:net';
import { join } from 'node:path';
import { pipeline, Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { checkAnswer } from '../../test/support/answers.ts';
import { createFakeManager, type FakeManager } from '../../test/support/fake-manager.ts';
import { asNobody } from '../../test/support/nobody.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { abortable } from '../base/abortable.ts';
import { gapPiece } from '../contract/gap.ts';
import { statusOf } from '../contract/http-errors.ts';
import { jobRequest } from '../contract/job.ts';
import type { LogPiece } from '../contract/manager.ts';
import { type Client, createClient } from './client.ts';
import { boundedWorkspace } from './routes.ts';
import { type ApiServer, startApi } from './server.ts';
import { probeSocket } from './sockets.ts';

let dir: Scratch;
let manager: FakeManager;
let server: ApiServer;
let client: Client;
let path: string;
let bugs: string[];

beforeEach(async () => {
  bugs = [];
  dir = scratch();
  path = join(dir.path, 'onejob.sock');
  manager = createFakeManager();
  const onBug = (error: Error, route: string) => void bugs.push(`${route}: ${error.message}`);
  server = await startApi({ onAnswer: checkAnswer, manager, socket: { path, access: 'owner' }, version: '1.0.0', onBug });
  client = createClient({ socket: path, version: '1.0.0' });
});

afterEach(async () => {
  await manager.end();
  await server.close();
  dir[Symbol.dispose]();
});

const shell = (script: string) => ({ command: ['sh', '-c', script] });

async function textOf(pieces: AsyncIterable<LogPiece>): Promise<Record<string, string>> {
  const texts: Record<string, string> = {};
  for await (const { stream, bytes } of pieces) texts[stream] = (texts[stream] ?? '') + Buffer.from(bytes).toString();
  return texts;
}

/** One request by hand, for what the client would never send. */
async function raw(method: string, target: string, body?: string): Promise<{ status: number; body: unknown }> {
  const request = http.request({
    socketPath: path,
    method,
    path: target,
    headers: body === undefined ? {} : { 'content-type': 'application/json' },
  });
  request.end(body);
  const [response] = (await once(request, 'response')) as [http.IncomingMessage];
  const text = (await buffer(response)).toString();
  return { status: response.statusCode ?? 0, body: text === '' ? null : JSON.parse(text) };
}

test('a name that was pointed at a forwarded socket gets nothing', async () => {
  const statusFor = async (host: string) => {
    const socket = connect(path);
    socket.end(`GET /v1/status HTTP/1.1\r\nhost: ${host}\r\nconnection: close\r\n\r\n`);
    return (await buffer(socket)).toString().slice(9, 12);
  };
  for (const host of [
    'evil.example',
    'evil.example:8080',
    'localhost.evil.example',
    '192.168.0.7',
    '[fe80::1]:80',
    'a!b.example',
    'x.',
  ])
    expect([host, await statusFor(host)]).toEqual([host, '403']);
  for (const host of ['localhost', 'localhost:8080', '127.0.0.1:8080', '[::1]', 'onejob', 'x', '%2Frun%2Fonejob%2Fonejob.sock', ''])
    expect([host, await statusFor(host)]).toEqual([host, '200']);
});

test('a client that goes away in the middle is not a bug', async () => {
  const begun = Promise.withResolvers<void>();
  const heard = Promise.withResolvers<void>();
  manager.settled = (_id, signal) =>
    new Promise((_resolve, reject) => {
      signal.addEventListener('abort', () => {
        reject(signal.reason);
        setImmediate(heard.resolve);
      });
      begun.resolve();
    });
  const { id } = await client.submit(shell('true'));
  const leaving = new AbortController();
  const waiting = client.settled(id, leaving.signal);
  await begun.promise;
  leaving.abort();
  await expect(waiting).rejects.toThrow();
  await heard.promise;
  expect(bugs).toEqual([]);
});

test('a daemon that is killed while a workspace is sent is a connection that was cut', async () => {
  await server.close();
  const killed = createServer((socket) => void socket.once('data', () => socket.destroy()));
  await new Promise<void>((resolve) => killed.listen(path, resolve));
  const endless = new Readable({
    read() {
      setImmediate(() => this.push(Buffer.alloc(65_536)));
    },
  });
  await expect(client.putWorkspace(endless)).rejects.toMatchObject({ code: 'E_DAEMON_CUT', retry: true });
  await new Promise((resolve) => killed.close(resolve));
});

describe('jobs', () => {
  test('a job is handed in, followed and settled', async () => {
    const job = await client.submit(shell('echo out; echo err >&2; exit 4'));
    expect(await textOf(client.logs({ job: job.id }, { follow: true }))).toEqual({ stdout: 'out\n', stderr: 'err\n' });
    expect((await client.settled(job.id)).result).toEqual({ kind: 'code', code: 4 });
    expect(await client.jobs({ all: false, pool: null })).toEqual([]);
    expect(await client.jobs({ all: true, pool: null })).toHaveLength(1);
  });

  test('a waiting job is cancelled, twice without harm', async () => {
    manager.open = false;
    const job = await client.submit(shell('true'));
    await client.cancel(job.id);
    await client.cancel(job.id);
    expect((await client.settled(job.id)).result).toEqual({ kind: 'cancelled' });
  });

  test('unknown jobs are said to be unknown', async () => {
    for (const ask of [client.job('x'), client.settled('x'), client.cancel('x'), client.cancel(''), client.artifacts('../..')]) {
      await expect(ask).rejects.toMatchObject({ code: 'E_JOB_UNKNOWN' });
    }
    expect((await raw('GET', '/v1/jobs/x')).status).toBe(404);
  });

  test('what the manager refuses arrives with its hint', async () => {
    await expect(client.submit({ ...shell('true'), pool: 'nope' })).rejects.toMatchObject({
      message: 'There is no pool nope.',
      hint: 'Pools: default.',
    });
  });

  test('a request is checked without being handed in', async () => {
    await client.call('POST /v1/jobs/check', { body: shell('true') });
    const other = client.call('POST /v1/jobs/check', { body: { ...shell('true'), pool: 'nope' } });
    await expect(other).rejects.toMatchObject({ message: 'There is no pool nope.' });
    expect((await raw('POST', '/v1/jobs/check', JSON.stringify({ command: [] }))).body).toMatchObject({ code: 'E_API_REQUEST' });
    expect(await client.jobs({ all: true, pool: null })).toEqual([]);
  });

  test('a list holds as many as asked for', async () => {
    manager.open = false;
    for (let at = 0; at < 3; at += 1) await client.submit(shell('true'));
    expect(await client.jobs({ all: true, pool: null, limit: 2 })).toHaveLength(2);
    for (const limit of ['0', '-1', 'many', '1.5', '10001'])
      expect((await raw('GET', `/v1/jobs?all=true&limit=${limit}`)).status).toBe(400);
  });

  test('a list is read page after page, up to the limit', async () => {
    const asked: unknown[] = [];
    const job = await client.submit(shell('true'));
    manager.jobs = ({ limit = 10_000, before = 'jobs.25000' }) => {
      asked.push([limit, before]);
      const end = Number(before.slice('jobs.'.length));
      const start = Math.max(0, end - limit);
      const jobs = Array.from({ length: end - start }, (_, n) => ({ ...job, id: `${start + n}` }));
      return { jobs, next: start === 0 ? null : `jobs.${start}` };
    };
    const ids = async (all: boolean, limit?: number) => (await client.jobs({ all, pool: null, limit })).map(({ id }) => Number(id));
    const numbers = (from: number) => Array.from({ length: 25_000 - from }, (_, n) => from + n);
    expect(await ids(true, 999_999)).toEqual(numbers(0));
    expect(await ids(false)).toEqual(numbers(0));
    expect(await ids(true)).toEqual(numbers(24_000));
    asked.length = 0;
    expect(await ids(true, 12_000)).toEqual(numbers(13_000));
    expect(asked).toEqual([
      [10_000, 'jobs.25000'],
      [2_000, 'jobs.15000'],
    ]);
  });

  test('only a filter of ended jobs asks for these, and names the next page', async () => {
    const asked: unknown[] = [];
    manager.endedJobs = (filter) => {
      asked.push(filter);
      return { jobs: [], next: '7.3' };
    };
    await client.jobs({ all: false, pool: null });
    expect((await raw('GET', '/v1/jobs?all=true&failed=false')).status).toBe(200);
    expect(asked).toEqual([]);
    const request = http.get({ socketPath: path, path: '/v1/jobs?failed=true&device=GPU-1&image=cuda%3A12&before=9.4&limit=2' });
    const [response] = (await once(request, 'response')) as [http.IncomingMessage];
    response.resume();
    expect(response.headers['onejob-next']).toBe('7.3');
    const none = { pool: null, service: null, since: null, until: null, kind: null, text: null };
    expect(asked).toEqual([{ ...none, failed: true, image: 'cuda:12', device: 'GPU-1', before: '9.4', limit: 2 }]);
  });

  test('a bad body is refused with the path of every problem', async () => {
    const answer = await raw('POST', '/v1/jobs', JSON.stringify({ command: [], priority: 'high', colour: 'red' }));
    expect(answer.status).toBe(400);
    expect(answer.body).toMatchObject({ code: 'E_API_REQUEST' });
    const { message } = answer.body as { message: string };
    expect(message).toContain('command:');
    expect(message).toContain('priority:');
    expect(message).toContain('colour');
  });

  test.each([
    ['{', 400],
    ['"text"', 400],
    ['', 400],
    [`{"command":["true"],"__proto__":{}}`, 400],
    [' '.repeat(8 * 2 ** 20 + 1), 400],
  ])('a body that begins %.40j is refused', async (body, status) => {
    expect(await raw('POST', '/v1/jobs', body)).toMatchObject({ status, body: { code: 'E_API_REQUEST' } });
  });

  test('a path that cannot be decoded is refused', async () => {
    expect(await raw('GET', '/v1/jobs/%zz')).toMatchObject({ status: 400, body: { code: 'E_API_REQUEST' } });
  });

  test('an unknown route says so, and where the known ones are listed', async () => {
    const hint = expect.stringContaining('GET /v1/openapi.json');
    expect(await raw('GET', '/v2/jobs')).toMatchObject({ status: 404, body: { code: 'E_API_ROUTE', hint } });
  });
});

test('lists that nobody reads are bounded, and nothing else waits for them', async () => {
  const job = { ...(await client.submit(jobRequest.parse(shell('true')))), command: ['x'.repeat(1_000)] };
  manager.elsewhere = Array.from({ length: 2_000 }, (_, n) => ({ ...job, id: `e${n}`, state: 'running' }));
  const readers = Array.from({ length: 16 }, () => connect(path));
  await Promise.all(
    readers.map((reader) => {
      reader.write('GET /v1/jobs HTTP/1.1\r\nhost: x\r\n\r\n');
      return once(reader, 'readable');
    }),
  );
  await expect(client.jobs({ all: false, pool: null })).rejects.toMatchObject({ code: 'E_API_BUSY', retry: true });
  await client.status();
  for (const reader of readers) reader.destroy();
  // Each of them closes before this is answered, or the next is tried.
  await vi.waitFor(() => client.jobs({ all: false, pool: null }));
});

describe('logs', () => {
  test('reading continues from a byte count, without a gap or a repeat', async () => {
    const job = await client.submit(shell('seq 1 2000'));
    await client.settled(job.id);
    const whole = (await textOf(client.logs({ job: job.id }, { follow: false }))).stdout ?? '';
    const from = (stdout: number) => textOf(client.logs({ job: job.id }, { follow: false, from: { stdout, stderr: 0 } }));
    for (const at of [0, 1, 17, whole.length - 1]) expect((await from(at)).stdout).toBe(whole.slice(at));
    expect(await from(whole.length)).toEqual({});
  });

  test('the last lines are those of both streams together, and following continues after them', async () => {
    const job = await client.submit(
      shell(`seq 1 20; while ! [ -e ${dir.path}/go ]; do sleep 0.02; done; echo oops >&2; printf last`),
    );
    const tail = async (lines: number) => (await textOf(client.logs({ job: job.id }, { follow: false, tail: lines }))).stdout ?? '';
    await expect.poll(() => tail(1)).toBe('20\n');
    expect([await tail(3), await tail(0), await tail(100)]).toEqual([
      '18\n19\n20\n',
      '',
      Array.from({ length: 20 }, (_, i) => `${i + 1}\n`).join(''),
    ]);
    const pieces = client.logs({ job: job.id }, { follow: true, tail: 2 });
    const shown: LogPiece[] = [];
    for await (const piece of pieces) {
      shown.push(piece);
      if (piece.stream === 'stdout') writeFileSync(join(dir.path, 'go'), '');
    }
    expect(shown[0]?.gap).toMatchObject({ asked: true, missing: { stdout: 45, stderr: 0 } });
    expect(
      shown
        .map(({ stream, bytes }) => `${stream} ${Buffer.from(bytes)}`)
        .slice(1)
        .sort(),
    ).toEqual(['stderr oops\n', 'stdout 19\n20\n', 'stdout last']);
    expect(await tail(1)).toBe('last');
  });

  test('what is missing is said once, and a client that knows of it is not told again', async () => {
    const gap = { missing: { stdout: 100, stderr: 7 }, after: { stdout: 5, stderr: 0 } };
    manager.logs = async function* () {
      yield { stream: 'stdout', bytes: Buffer.from('begin') };
      yield gapPiece(gap);
      yield { stream: 'stdout', bytes: Buffer.from('end') };
    };
    const read = async (stdout: number, stderr: number) => {
      const pieces: LogPiece[] = [];
      for await (const piece of client.logs({ job: 'j' }, { follow: false, from: { stdout, stderr } })) pieces.push(piece);
      return pieces.map((piece) => piece.gap ?? Buffer.from(piece.bytes).toString());
    };
    expect(await read(0, 0)).toEqual(['begin', gap, 'end']);
    expect(await read(5, 0)).toEqual([gap, 'end']);
    expect(await read(35, 7)).toEqual([{ missing: { stdout: 70, stderr: 0 }, after: { stdout: 35, stderr: 7 } }, 'end']);
    expect(await read(106, 7)).toEqual(['nd']);
  });

  test('binary output keeps its bytes', async () => {
    const job = await client.submit(shell('printf "\\000\\377\\376\\n\\001"'));
    const parts: Uint8Array[] = [];
    for await (const piece of client.logs({ job: job.id }, { follow: true })) parts.push(piece.bytes);
    expect(Buffer.concat(parts)).toEqual(Buffer.from([0, 255, 254, 10, 1]));
  });

  test('a reader that stands still does not fill the daemon', async () => {
    let given = 0;
    manager.logs = async function* () {
      const bytes = Buffer.alloc(64 * 1024);
      for (; given < 1_000; given += 1) yield { stream: 'stdout', bytes };
    };
    const pieces = client.logs({ job: 'any' }, { follow: false });
    await pieces.next();
    await new Promise((resolve) => setTimeout(resolve, 100));
    expect(given).toBeLessThan(100);
    await pieces.return(undefined);
  });

  test('a failure in the middle arrives as what it was', async () => {
    manager.logs = async function* () {
      yield { stream: 'stdout', bytes: Buffer.from('half') };
      throw new Error('disk on fire');
    };
    await expect(textOf(client.logs({ job: 'any' }, { follow: false }))).rejects.toMatchObject({
      code: 'E_BUG',
      message: 'disk on fire',
    });
  });

  test('a daemon that goes away in the middle is told from the end', async () => {
    const job = await client.submit(shell('echo first; exec sleep 60'));
    const pieces = client.logs({ job: job.id }, { follow: true });
    expect(Buffer.from((await pieces.next()).value?.bytes ?? []).toString()).toBe('first\n');
    const next = pieces.next();
    await Promise.all([expect(next).rejects.toMatchObject({ code: 'E_DAEMON_CUT', retry: true }), server.close()]);
  });

  test('the source is told when nobody listens any more', async () => {
    const stopped = Promise.withResolvers<void>();
    manager.logs = async function* (_source, _follow, signal) {
      signal.addEventListener('abort', () => stopped.resolve());
      yield { stream: 'stdout', bytes: Buffer.from('x') };
      await stopped.promise;
    };
    const pieces = client.logs({ job: 'any' }, { follow: true });
    await pieces.next();
    await pieces.return(undefined);
    await stopped.promise;
  });

  test('exactly one source must be named', async () => {
    expect((await raw('GET', '/v1/logs')).status).toBe(400);
    expect((await raw('GET', '/v1/logs?job=a&agent=b')).status).toBe(400);
    expect((await raw('GET', '/v1/logs?job=a&stdout=-1')).status).toBe(400);
  });
});

describe('what other CI services keep', () => {
  test('logs of an agent’s own come like output', async () => {
    manager.ownLogs.set('a1', [{ stream: 'stdout', bytes: Buffer.from('==> a <==\n') }]);
    const source = { agent: 'a1' };
    expect(await textOf(client.logs(source, { follow: false, own: true }))).toEqual({ stdout: '==> a <==\n' });
    await expect(textOf(client.logs({ agent: 'b' }, { follow: false, own: true }))).rejects.toMatchObject({
      code: 'E_LOG_UNKNOWN',
    });
  });

  test('who waits for what was forgotten is told, or that the daemon has gone', async () => {
    manager.forgottenViews = [{ service: 'azure', removed: ['p1'], left: [], problem: null }];
    expect(await client.forgotten()).toEqual(manager.forgottenViews);
    const asked = Promise.withResolvers<void>();
    manager.forgotten = (signal) => {
      asked.resolve();
      return new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)));
    };
    const told = client.forgotten();
    await asked.promise;
    await Promise.all([expect(told).rejects.toMatchObject({ code: 'E_DAEMON_STOPPING' }), server.close()]);
  });
});

describe('files', () => {
  test('a workspace is streamed in', async () => {
    const bytes = Buffer.alloc(3_000_000, 'x');
    let sent = 0;
    const id = await client.putWorkspace(Readable.from([bytes]), (count) => {
      sent = count;
    });
    expect(manager.workspaces.get(id)).toEqual(bytes);
    expect(sent).toBe(bytes.length);
  });

  test('a refused workspace gives the reason, not a broken pipe', async () => {
    manager.putWorkspace = async (files) => {
      await once(files, 'data');
      throw new Error('no room');
    };
    const endless = new Readable({
      read() {
        this.push(Buffer.alloc(65_536));
      },
    });
    await expect(client.putWorkspace(endless)).rejects.toMatchObject({ message: 'no room' });
    expect(endless.destroyed).toBe(true);
    expect((await client.status()).version).toBe('0.0.0');
  });

  test('files that cannot be read fail the sending, and the daemon gets no half workspace', async () => {
    const broken = Readable.from(
      (async function* () {
        yield Buffer.alloc(100);
        throw new Error('cannot read a.txt');
      })(),
    );
    await expect(client.putWorkspace(broken)).rejects.toThrow('cannot read a.txt');
    expect(manager.workspaces.size).toBe(0);
  });

  test('a workspace over the limit is an error of its own, wherever it is cut into pieces', async () => {
    const sized = (...sizes: number[]) =>
      buffer(pipeline(Readable.from(sizes.map((size) => Buffer.alloc(size))), boundedWorkspace(10), () => {}));
    expect(await sized(4, 6)).toHaveLength(10);
    await expect(sized(4, 6, 1)).rejects.toMatchObject({ code: 'E_WORKSPACE_TOO_LARGE' });
    expect(statusOf('E_WORKSPACE_TOO_LARGE')).toBe(413);
  });

  test('artifacts come back, or nothing', async () => {
    const job = await client.submit(shell('true'));
    expect(await client.artifacts(job.id)).toBeNull();
    manager.artifactsOf = () => Buffer.from('tar');
    const files = await client.artifacts(job.id);
    expect((await buffer(files ?? Readable.from([]))).toString()).toBe('tar');
  });
});

test('its health is a status alone: 200, and 503 while it stops', async () => {
  const health = async () => {
    const request = http.request({ socketPath: path, path: '/healthz' });
    request.end();
    const [response] = (await once(request, 'response')) as [http.IncomingMessage];
    return { status: response.statusCode, text: (await buffer(response)).toString() };
  };
  expect(await health()).toEqual({ status: 200, text: 'ok\n' });
  manager.statusOverride = { stopping: true };
  const { status, text } = await health();
  expect(status).toBe(503);
  expect(JSON.parse(text)).toMatchObject({ code: 'E_DAEMON_STOPPING' });
});

describe('holding and stopping', () => {
  test('a hold lasts as long as its client', async () => {
    const hold = await client.hold();
    expect(manager.holds()).toBe(1);
    const idle = once(manager.events, 'idle');
    hold.release();
    await idle;
    expect(manager.holds()).toBe(0);
  });

  test('closing ends holds and long polls, and removes the socket', async () => {
    manager.open = false;
    const job = await client.submit(shell('true'));
    const hold = await client.hold();
    const arrived = Promise.withResolvers<void>();
    const { settled: wait } = manager;
    manager.settled = (id, signal) => {
      arrived.resolve();
      return wait(id, signal);
    };
    const settled = client.settled(job.id);
    await arrived.promise;
    await Promise.all([
      expect(settled).rejects.toMatchObject({ code: 'E_DAEMON_STOPPING', retry: true }),
      hold.ended,
      server.close(),
    ]);
    expect(existsSync(path)).toBe(false);
    await expect(client.status()).rejects.toMatchObject({ code: 'E_DAEMON_ABSENT' });
  });

  test('closing ends what is only asked for, and that is not a bug', async () => {
    const arrived = [Promise.withResolvers<void>(), Promise.withResolvers<void>()] as const;
    const waits = (which: 0 | 1, signal: AbortSignal) => {
      arrived[which].resolve();
      return abortable(new Promise<never>(() => {}), signal);
    };
    manager.doctor = (signal) => waits(0, signal);
    manager.putWorkspace = (_files, signal) => waits(1, signal);
    const asked = [client.call('GET /v1/doctor'), client.putWorkspace(Readable.from([Buffer.from('some')]))];
    await Promise.all(arrived.map(({ promise }) => promise));
    await Promise.all([
      ...asked.map((each) => expect(each).rejects.toMatchObject({ code: 'E_DAEMON_STOPPING', retry: true })),
      server.close(),
    ]);
    expect(bugs).toEqual([]);
  });

  test('a request that comes while it closes is told so, in words that clients understand', async () => {
    const late = connect(path);
    late.write('GET /v1/jobs?all=true HTTP/1.1\r\nhost: x\r\n');
    // What came before is read by then.
    for (let n = 0; n < 3; n++) await client.status();
    const closed = server.close();
    late.end('connection: close\r\n\r\n');
    const answer = (await buffer(late)).toString();
    expect(answer).toMatch(/^HTTP\/1\.1 503 /);
    expect(answer).toContain('onejob-version: 1.0.0');
    expect(JSON.parse(answer.slice(answer.indexOf('\r\n\r\n')))).toMatchObject({ code: 'E_DAEMON_STOPPING', retry: true });
    await closed;
  });

  test('pools and the daemon are told', async () => {
    await client.pause('lab', 'alice');
    manager.held = [{ pool: 'lab', by: ['bob'], because: [] }];
    expect(await client.resume(null, 'alice')).toEqual({ changed: true, held: manager.held });
    await client.drain('lab');
    await client.down({ how: 'drain' });
    expect(manager.calls).toEqual(['pause lab alice', 'resume null alice', 'drain lab', 'down drain null']);
    await expect(client.down({ how: 'leave', forget: true })).rejects.toMatchObject({ code: 'E_API_REQUEST' });
  });
});

describe('what can go wrong on the way', () => {
  test('a listener that goes while somebody connects listens no more', async () => {
    const ending = createServer().listen(join(dir.path, 'ending'));
    await once(ending, 'listening');
    const probed = probeSocket(join(dir.path, 'ending'));
    // Nobody has taken the connection off its queue.
    ending.close();
    expect(await probed).toBe('stale');
  });

  test('another version is named when its answers are not understood', async () => {
    await server.close();
    server = await startApi({ manager, socket: { path, access: 'owner' }, version: '1.0.0' });
    const newer = createClient({ socket: path, version: '2.0.0' });
    manager.status = () => ({}) as never;
    await expect(newer.status()).rejects.toMatchObject({ code: 'E_API_VERSION', message: expect.stringContaining('1.0.0') });
    await expect(client.status()).rejects.toMatchObject({ code: 'E_API_ANSWER' });
  });

  test('a daemon that sends informational answers without end, or more than a sign of life while it is held, is cut off', async () => {
    const path = join(dir.path, 'flood');
    let written = 0;
    const daemon = createServer((socket) => {
      socket
        .on('error', () => {})
        .once('data', (request) => {
          const isHold = request.toString().startsWith('GET /v1/hold');
          const piece = isHold ? 'x'.repeat(1_000) : 'HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n'.repeat(100);
          if (isHold) socket.write('HTTP/1.1 200 OK\r\nonejob-version: 1\r\n\r\n\n');
          const more = (): void => {
            written += 1;
            if (!socket.destroyed) socket.write(piece, () => setImmediate(more));
          };
          more();
        });
    }).listen(path);
    await once(daemon, 'listening');
    try {
      const client = createClient({ socket: path, version: '1' });
      await expect(client.status()).rejects.toMatchObject({
        message: expect.stringContaining('informational answers without end'),
      });
      const held = await client.hold();
      await held.ended;
      expect(written).toBeGreaterThan(0);
    } finally {
      daemon.close();
    }
  });

  test('a client that trusts its daemon checks the answers of any other version', async () => {
    const daemon = http.createServer((_request, response) => response.setHeader('onejob-version', '1.0.0').end('{"pools": []}'));
    const where = join(dir.path, 'daemon.sock');
    await once(daemon.listen(where), 'listening');
    const trusting = createClient({ socket: where, version: '1.0.0', trusting: true });
    expect(await trusting.status()).toEqual({ pools: [] });
    const newer = createClient({ socket: where, version: '2.0.0', trusting: true });
    await expect(newer.status()).rejects.toMatchObject({ code: 'E_API_VERSION' });
    await once(daemon.close(), 'close');
  });

  test('a daemon that does not answer is given up', async () => {
    const sockets: Socket[] = [];
    const silent = createServer((socket) => sockets.push(socket));
    const where = join(dir.path, 's.sock');
    await new Promise<void>((resolve) => silent.listen(where, resolve));
    const impatient = createClient({ socket: where, version: '1.0.0', patience: 50 });
    await expect(impatient.status()).rejects.toMatchObject({ code: 'E_DAEMON_SILENT' });
    for (const socket of sockets) socket.destroy();
    await new Promise((resolve) => silent.close(resolve));
  });

  test('a second daemon at the same socket is refused', async () => {
    const second = startApi({ manager, socket: { path, access: 'owner' }, version: '1.0.0' });
    await expect(second).rejects.toMatchObject({ code: 'E_SOCKET_TAKEN' });
    expect((await client.status()).version).toBe('0.0.0');
  });

  test('an ordinary file at the socket path is not touched', async () => {
    const where = join(dir.path, 'precious');
    writeFileSync(where, 'data');
    await expect(startApi({ manager, socket: { path: where, access: 'owner' }, version: '1' })).rejects.toMatchObject({
      code: 'E_SOCKET_TAKEN',
    });
    expect(statSync(where).size).toBe(4);
  });

  test('only the owner may connect', () => {
    expect(statSync(path).mode & 0o777).toBe(0o600);
  });

  test('a socket that refuses is not an absent daemon', async () => {
    chmodSync(path, 0);
    await asNobody(async () => {
      await expect(client.status()).rejects.toMatchObject({ code: 'E_SOCKET_DENIED', hint: expect.stringContaining('onejob') });
      expect(await probeSocket(path)).toBe('denied');
    });
  });

  test('a path that Node would cut is refused', () => {
    expect(() => createClient({ socket: `/${'x'.repeat(100)}`, version: '1' })).toThrow(
      expect.objectContaining({ code: 'E_SOCKET_PATH' }),
    );
  });
});
