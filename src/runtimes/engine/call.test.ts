import { EventEmitter, once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer, type IncomingMessage, type RequestListener } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PassThrough, pipeline, Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { setTimeout as pause } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { handClock } from '../../../test/kit/core.ts';
import { answersPing } from '../../../test/kit/fake-engine.ts';
import { connect, usualLimits } from './call.ts';

/** `held`: gets the answer to the question for its version, to give it later. An Engine that answers everything so, and calls to it that are bounded by a clock of one's own. */
async function engine(answer: RequestListener, held?: (answer: () => void, request: IncomingMessage) => void) {
  const folder = mkdtempSync(join(tmpdir(), 'onejob-call-'));
  const path = join(folder, 'socket');
  let isFirst = true;
  const server = createServer((request, response) => {
    const isAsking = isFirst;
    isFirst = false;
    if (isAsking && held !== undefined) return held(() => void answersPing(request, response), request);
    if (!isAsking || !answersPing(request, response)) answer(request, response);
  });
  await new Promise<void>((resolve) => server.listen(path, resolve));
  const clock = handClock();
  const { raw, close } = connect({ kind: 'unix', path, from: 'test' }, usualLimits, clock);
  return {
    clock,
    raw,
    [Symbol.dispose]() {
      close();
      server.closeAllConnections();
      server.close();
      rmSync(folder, { recursive: true });
    },
  };
}

const pull = { method: 'POST', path: '/images/create', doing: 'pull', limit: 'idle', stream: true } as const;

test('a stream that was read leaves no timer, even if its reader was slower than the Engine', async () => {
  using one = await engine(async (_, response) => {
    // In pieces of which several fit between the Engine and its reader.
    for (const size of [40_000, 40_000, 20_000]) {
      response.write(Buffer.alloc(size));
      await pause(20);
    }
    response.end();
  });
  const flow = await one.raw(pull);
  if (!(flow instanceof Readable)) throw new Error('no stream');
  expect(one.clock.next()).toBe(usualLimits.idle);
  // By now the Engine has sent all, and hung up; most of it waits here.
  await pause(300);
  expect((await buffer(flow)).length).toBe(100_000);
  await pause(10);
  expect(one.clock.next()).toBeNull();
});

test('a file that is refused while it is sent leaves no timer', async () => {
  using one = await engine((_, response) => response.writeHead(404, { connection: 'close' }).end('{"message":"no"}'));
  const file = new PassThrough();
  file.write('some');
  const put = one.raw({ method: 'PUT', path: '/containers/a/archive', doing: 'put files', limit: 'idle', file });
  await expect(put).rejects.toMatchObject({ statusCode: 404 });
  await pause(10);
  expect(one.clock.next()).toBeNull();
});

test.each([
  ['a pipeline', (source: Readable) => pipeline(source, new PassThrough(), () => {})],
  ['a bare stream', (source: Readable) => source],
])('a file that breaks before the Engine has said its version is to blame, not the Engine: %s', async (_, through) => {
  const heard = Promise.withResolvers<() => void>();
  using one = await engine(
    (_, response) => response.end('{}'),
    (answer) => heard.resolve(answer),
  );
  const source = new Readable({ read() {} });
  const file = through(source);
  const put = one.raw({ method: 'PUT', path: '/containers/a/archive', doing: 'put files', limit: 'idle', file });
  const refused = expect(put).rejects.toMatchObject({
    code: 'E_FILES',
    message: 'Cannot put files: failed to read them (it broke).',
  });
  const answer = await heard.promise;
  source.destroy(new Error('it broke'));
  if (!file.closed) await once(file, 'close').catch(() => {});
  answer();
  await refused;
  expect(one.clock.next()).toBeNull();
});

test('a file that breaks counts although the Engine is away', async () => {
  using one = await engine(
    (_, response) => response.end('{}'),
    (_answer, request) => request.socket.destroy(),
  );
  const file = new Readable({ read() {} });
  const put = one.raw({ method: 'PUT', path: '/containers/a/archive', doing: 'put files', limit: 'idle', file });
  file.destroy(new Error('it broke'));
  await expect(put).rejects.toMatchObject({ code: 'E_FILES' });
});

test('work of the Engine may take as long as it answers other calls, and is given up when it no longer does', async () => {
  const mutes: { answers: boolean } = { answers: true };
  const working: (() => void)[] = [];
  const pings = new EventEmitter();
  using one = await engine((request, response) => {
    if (request.url !== '/_ping') return void working.push(() => response.end('{}'));
    if (mutes.answers) response.end('OK');
    pings.emit('ping');
  });
  const work = { method: 'POST', path: '/commit', doing: 'make an image', limit: 'work' } as const;
  /** Until the Engine has been asked whether it is still there, and that is settled. */
  const later = async () => {
    const asked = once(pings, 'ping');
    await expect.poll(() => one.clock.next()).toBe(usualLimits.late);
    one.clock.advance(usualLimits.late);
    await asked;
  };
  const first = one.raw(work);
  await expect.poll(() => working.length).toBe(1);
  for (let n = 0; n < 5; n += 1) await later();
  working.pop()?.();
  expect(await first).toEqual({});
  await expect.poll(() => one.clock.next()).toBeNull();

  mutes.answers = false;
  const second = expect(one.raw(work)).rejects.toMatchObject({ code: 'E_ENGINE_UNREACHABLE' });
  await expect.poll(() => working.length).toBe(1);
  await later();
  one.clock.advance(usualLimits.ping);
  await second;
  expect(one.clock.next()).toBeNull();

  const stop = new AbortController();
  const third = expect(one.raw({ ...work, signal: stop.signal })).rejects.toThrow('no longer wanted');
  await expect.poll(() => working.length).toBe(2);
  stop.abort(new Error('no longer wanted'));
  await third;
  expect(one.clock.next()).toBeNull();
});

test('an engine that belongs to a job cannot fill memory with an answer that does not end', async () => {
  let sent = 0;
  using one = await engine((_, response) => {
    const piece = Buffer.alloc(2 ** 20, ' ');
    const more = (): void => {
      do sent += piece.length;
      while (response.write(piece) && sent < 2 ** 30);
    };
    response.on('drain', more);
    more();
  });
  const call = one.raw({ method: 'GET', path: '/containers/json', doing: 'list', limit: 'soon' });
  await expect(call).rejects.toThrow('its answer is longer than 64 MiB');
  expect(sent).toBeLessThan(2 ** 28);
});
