/** Shells over a real socket, with a manager whose shells are plain child processes. */
import { once } from 'node:events';
import http from 'node:http';
import { connect, createServer, type Socket } from 'node:net';
import { join } from 'node:path';
import { type Duplex, duplexPair, PassThrough, pipeline } from 'node:stream';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { handClock } from '../../test/kit/core.ts';
import { createFakeManager, type FakeManager } from '../../test/support/fake-manager.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { jobRequest } from '../contract/job.ts';
import { shellFrame } from '../contract/shell-frames.ts';
import { createClient } from './client.ts';
import { type ApiServer, startApi } from './server.ts';

let dir: Scratch;
let manager: FakeManager;
let server: ApiServer;
let path: string;
let id: string;
const clock = handClock();

beforeEach(async () => {
  dir = scratch();
  path = join(dir.path, 'onejob.sock');
  manager = createFakeManager();
  server = await startApi({ manager, socket: { path, access: 'owner' }, version: '1.0.0', clock });
  id = manager.submit(jobRequest.parse({ command: ['false'] })).id;
  await manager.settled(id, new AbortController().signal);
  manager.holdFailed(id);
});

afterEach(async () => {
  await server.close();
  await manager.end();
  dir[Symbol.dispose]();
  expect(clock.next()).toBeNull();
});

const client = () => createClient({ socket: path, version: '1.0.0' });
const noTerminal = (...command: string[]) => ({ command, terminal: null });

/** Output and exit code. */
async function run(shell: Awaited<ReturnType<ReturnType<typeof client>['shell']>>) {
  const said = { stdout: '', stderr: '' };
  const code = await shell.run(async (stream, bytes) => {
    said[stream] += Buffer.from(bytes).toString();
  });
  return { ...said, code };
}

test('input and output pass, and the exit code', async () => {
  const shell = await client().shell(id, noTerminal('sh', '-c', 'cat; echo wrong >&2; exit 3'));
  await shell.write(Buffer.from('some '));
  await shell.write(Buffer.from('words'));
  shell.end();
  expect(await run(shell)).toEqual({ stdout: 'some words', stderr: 'wrong\n', code: 3 });
});

test('another connection than a socket will do, such as that to another host', async () => {
  const dial = (): Duplex => {
    const [near, far] = duplexPair();
    const socket = connect(path);
    pipeline(far, socket, far, () => {});
    return near;
  };
  const shell = await createClient({ socket: 'gpuci', version: '1.0.0', dial }).shell(id, noTerminal('sh', '-c', 'cat; exit 3'));
  await shell.write(Buffer.from('words'));
  shell.end();
  expect(await run(shell)).toEqual({ stdout: 'words', stderr: '', code: 3 });
});

test('a daemon that does not answer is given up', async () => {
  const silent = createServer();
  const silentPath = join(dir.path, 'silent.sock');
  await once(silent.listen(silentPath), 'listening');
  const accepted = once(silent, 'connection');
  const asked = createClient({ socket: silentPath, version: '1.0.0', patience: 50 }).shell(id, noTerminal('true'));
  await expect(asked).rejects.toMatchObject({ code: 'E_DAEMON_SILENT' });
  const [connection] = (await accepted) as [Duplex];
  connection.destroy();
  silent.close();
});

test('megabytes pass both ways', async () => {
  const shell = await client().shell(id, noTerminal('sh', '-c', 'cat'));
  const size = 5_000_001;
  const typed = shell.write(Buffer.alloc(size, 'x')).then(() => shell.end());
  let read = 0;
  expect(
    await shell.run(async (_, bytes) => {
      read += bytes.length;
    }),
  ).toBe(0);
  await typed;
  expect(read).toBe(size);
});

test('the size of the terminal follows', async () => {
  const terminal = { columns: 91, rows: 33, term: 'vt100' };
  const shell = await client().shell(id, { command: ['sh', '-c', 'echo "$SIZE"; cat'], terminal });
  shell.resize({ columns: 60, rows: 20 });
  shell.end();
  expect(JSON.parse((await run(shell)).stdout)).toEqual(terminal);
  expect(manager.calls).toContain('resize 60x20');
});

test.each([
  ['an unknown job', 'nope', 'E_JOB_UNKNOWN'],
  ['a job that is not held', 'passed', 'E_NOT_HELD'],
])('%s has no shell, and nothing to remove', async (_, which, code) => {
  const passed = manager.submit(jobRequest.parse({ command: ['true'] })).id;
  await manager.settled(passed, new AbortController().signal);
  const target = which === 'passed' ? passed : which;
  await expect(client().shell(target, noTerminal('true'))).rejects.toMatchObject({ code });
  await expect(client().unhold(target)).rejects.toMatchObject({ code });
});

test('a job that is no longer held has no shell', async () => {
  expect((await client().unhold(id)).held).toBeUndefined();
  await expect(client().shell(id, noTerminal('true'))).rejects.toMatchObject({ code: 'E_NOT_HELD' });
});

test('a shell that cannot be started says why', async () => {
  const shell = await client().shell(id, { command: ['true'], terminal: { columns: 0, rows: 1, term: 'x' } });
  await expect(run(shell)).rejects.toMatchObject({ code: 'E_API_REQUEST' });
});

test('a client that goes away ends its shell', async () => {
  const shell = await client().shell(id, noTerminal('sh', '-c', 'echo $$; exec sleep 600'));
  const { promise: pid, resolve } = Promise.withResolvers<number>();
  const reading = shell.run(async (_, bytes) => resolve(Number(Buffer.from(bytes).toString())));
  const alive = await pid;
  shell.close();
  await expect(reading).rejects.toMatchObject({ code: 'E_DAEMON_CUT' });
  await expect.poll(() => isAlive(alive)).toBe(false);
});

test('a client that goes away while its shell takes no input ends it, too', async () => {
  const shell = await client().shell(id, noTerminal('sh', '-c', 'echo $$; exec sleep 600'));
  const { promise: pid, resolve } = Promise.withResolvers<number>();
  const reading = shell.run(async (_, bytes) => resolve(Number(Buffer.from(bytes).toString())));
  const typing = shell.write(Buffer.alloc(5_000_000));
  const alive = await pid;
  shell.close();
  await expect(reading).rejects.toMatchObject({ code: 'E_DAEMON_CUT' });
  await typing;
  await expect
    .poll(() => {
      clock.advance(5_000);
      return isAlive(alive);
    })
    .toBe(false);
});

test('a client that goes away while its shell is being prepared ends that', async () => {
  const asked = Promise.withResolvers<AbortSignal>();
  manager.shell = (_, _start, signal) => {
    asked.resolve(signal);
    return new Promise((_resolve, reject) => signal.addEventListener('abort', () => reject(signal.reason), { once: true }));
  };
  const shell = await client().shell(id, noTerminal('true'));
  await shell.write(Buffer.from('typed ahead'));
  const signal = await asked.promise;
  shell.close();
  await expect
    .poll(() => {
      clock.advance(5_000);
      return signal.aborted;
    })
    .toBe(true);
});

test('a daemon that stops ends its shells, and says so', async () => {
  const shell = await client().shell(id, noTerminal('sh', '-c', 'echo up; exec sleep 600'));
  const { promise: up, resolve } = Promise.withResolvers<void>();
  const reading = shell.run(async () => resolve());
  const ended = expect(reading).rejects.toMatchObject({ code: 'E_DAEMON_STOPPING' });
  await up;
  await server.close();
  await ended;
});

test('a client that reads nothing does not keep a stopping daemon', async () => {
  await client().shell(id, noTerminal('sh', '-c', 'exec yes'));
  await server.close();
});

test('what is not framed ends the shell', async () => {
  const socket = connect(path);
  socket.write(
    `POST /v1/jobs/${id}/shell HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: onejob-shell\r\nContent-Length: 0\r\n\r\n`,
  );
  await once(socket, 'data');
  socket.write(shellFrame('start', noTerminal('sh', '-c', 'exec sleep 600')));
  socket.write(Buffer.alloc(64, 255));
  let text = '';
  for await (const bytes of socket) text += bytes;
  expect(text).toContain('E_API_REQUEST');
});

/** A connection for which the daemon waits for its first frame. */
async function unstarted() {
  const socket = connect({ path, allowHalfOpen: true });
  socket.write(
    `POST /v1/jobs/${id}/shell HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: onejob-shell\r\nContent-Length: 0\r\n\r\n`,
  );
  expect(String((await once(socket, 'data'))[0])).toContain('101');
  return socket;
}

test('a client that starts no shell is told so after 10 s, and cut off if it stays nevertheless', async () => {
  const socket = await unstarted();
  expect(clock.next()).toBe(10_000);
  clock.advance(9_999);
  // The beginning of a frame starts nothing.
  socket.write(shellFrame('start', noTerminal('true')).subarray(0, 7));
  const told = once(socket, 'data');
  clock.advance(1);
  expect(String((await told)[0])).toContain('E_API_REQUEST');
  // It may keep its side open, or send more.
  socket.write(Buffer.alloc(100_000));
  await expect.poll(() => clock.next()).toBe(10_000);
  const closed = new Promise((resolve) => socket.on('error', () => {}).once('close', resolve));
  clock.advance(10_000);
  // Only a write shows a client whose other side has ended that it is gone.
  socket.write('x');
  await closed;
  expect(clock.next()).toBeNull();
});

test('a client that goes before it starts a shell leaves no timer', async () => {
  const socket = await unstarted();
  socket.destroy();
  await expect.poll(() => clock.next()).toBeNull();
});

test('a client that starts no shell does not keep a stopping daemon', async () => {
  const socket = await unstarted();
  const told = once(socket, 'data');
  const closing = server.close();
  expect(String((await told)[0])).toContain('E_DAEMON_STOPPING');
  socket.end();
  await closing;
});

test('a shell that has started has as long as it wants', async () => {
  const shell = await client().shell(id, noTerminal('sh', '-c', 'echo up; cat'));
  const { promise: up, resolve } = Promise.withResolvers<void>();
  const reading = shell.run(async () => resolve());
  await up;
  for (let n = 0; n < 5; n += 1) clock.advance(10_000);
  shell.end();
  expect(await reading).toBe(0);
});

/** A shell that has said more than fits, to a client that reads none of it. `end` ends it. */
async function unread() {
  const { promise: ended, resolve: end } = Promise.withResolvers<number>();
  async function* output() {
    yield { stream: 'stdout' as const, bytes: Buffer.alloc(4_000_000) };
  }
  manager.shell = async () => ({ stdin: new PassThrough(), output: output(), resize: () => {}, ended });
  const socket = await unstarted();
  socket.on('error', () => {}).pause();
  socket.write(shellFrame('start', noTerminal('true')));
  await expect.poll(() => clock.next()).toBe(5_000);
  return { socket, end };
}

/** Only a write shows that: what the daemon has sent before can still be read. */
const isConnected = (socket: Socket) =>
  new Promise<boolean>((resolve) => socket.write(shellFrame('size', { columns: 80, rows: 24 }), (error) => resolve(!error)));

test('a client may leave unread what its shell has said for an hour after the end, not longer', async () => {
  const { socket, end } = await unread();
  for (let n = 0; n < 100; n += 1) clock.advance(100_000);
  end(0);
  await new Promise(setImmediate);
  clock.advance(3_599_999);
  expect(await isConnected(socket)).toBe(true);
  clock.advance(1);
  await expect.poll(() => isConnected(socket)).toBe(false);
  await expect.poll(() => clock.next()).toBeNull();
  socket.destroy();
});

test('a client that reads late reads all, and the exit code', async () => {
  const { socket, end } = await unread();
  end(7);
  await new Promise(setImmediate);
  clock.advance(3_500_000);
  let length = 0;
  let last = '';
  socket.on('data', (bytes: Buffer) => {
    length += bytes.length;
    last = bytes.toString('latin1');
  });
  socket.resume();
  await once(socket, 'end');
  expect(length).toBeGreaterThan(4_000_000);
  expect(last).toContain('{"code":7}');
  socket.destroy();
});

test('a request without an upgrade, or for another one, is answered as usual', async () => {
  const ask = async (method: string, target: string, headers: http.OutgoingHttpHeaders) => {
    const request = http.request({ socketPath: path, method, path: target, headers });
    request.end();
    const [response] = (await once(request, 'response')) as [http.IncomingMessage];
    response.resume();
    return response.statusCode;
  };
  expect(await ask('POST', `/v1/jobs/${id}/shell`, {})).toBe(400);
  expect(await ask('GET', '/v1/status', { connection: 'Upgrade', upgrade: 'websocket' })).toBe(200);
  expect(await ask('GET', '/v1/status', { connection: 'Upgrade', upgrade: 'onejob-shell' })).toBe(200);
  expect(await ask('POST', '/v1/jobs/%E0%A4%A/shell', { connection: 'Upgrade', upgrade: 'onejob-shell' })).toBe(400);
});

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}
