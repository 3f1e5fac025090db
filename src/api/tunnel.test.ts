/** Connections through one pipe, and what ends them; with real servers and a program that stands for ssh. */
import { once } from 'node:events';
import { chmodSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { join } from 'node:path';
import { duplexPair, PassThrough } from 'node:stream';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { createRemote } from '../cli/remote.ts';
import { parseSshUrl } from '../cli/ssh.ts';
import { createClient } from './client.ts';
import { greetingLine, openTunnel, readGreeting, serveTunnel } from './tunnel.ts';

const never = new AbortController().signal;

let dir: Scratch;
beforeEach(() => {
  dir = scratch();
});
afterEach(() => dir[Symbol.dispose]());

/** A server behind a tunnel, and how to ask it. */
async function tunnelled(listener: http.RequestListener, path = join(dir.path, 's')) {
  const server = http.createServer(listener).listen(path);
  await once(server, 'listening');
  const [near, far] = duplexPair();
  const served = serveTunnel(far, async () => path).ended;
  const tunnel = openTunnel(near);
  const agent = Object.assign(new http.Agent({ keepAlive: false }), { createConnection: tunnel.dial });
  const ask = (body: Buffer) =>
    new Promise<string>((resolve, reject) => {
      const request = http.request({ agent, method: 'POST', path: '/' }, (response) => {
        let text = '';
        response.setEncoding('utf8').on('data', (piece) => {
          text += piece;
        });
        response.on('end', () => resolve(text)).on('error', reject);
      });
      request.on('error', reject).end(body);
    });
  return {
    server,
    tunnel,
    ask,
    agent,
    near,
    served,
    async [Symbol.asyncDispose]() {
      near.end();
      await served;
      server.closeAllConnections();
      server.close();
    },
  };
}

describe('a tunnel', () => {
  const count: http.RequestListener = (request, response) => {
    let bytes = 0;
    request.on('data', (piece: Buffer) => {
      bytes += piece.length;
    });
    request.on('end', () => response.end(`${bytes}`));
  };

  test('carries many connections at a time, small next to large', async () => {
    await using one = await tunnelled(count);
    const sizes = [0, 30 * 2 ** 20, 3, 1 << 20];
    expect(await Promise.all(sizes.map((size) => one.ask(Buffer.alloc(size))))).toEqual(sizes.map(String));
  });

  test('a reader that stands still holds up nobody else', async () => {
    await using one = await tunnelled((request, response) => {
      if (request.url === '/') return count(request, response);
      response.end(Buffer.alloc(40 * 2 ** 20));
    });
    const stalled = http.get({ agent: one.agent, path: '/large' });
    const [response] = (await once(stalled, 'response')) as [http.IncomingMessage];
    response.pause();
    expect(await one.ask(Buffer.alloc(7))).toBe('7');
    response.destroy();
    expect(await one.ask(Buffer.alloc(8))).toBe('8');
  });

  test('what the near end gives up, the daemon sees', async () => {
    const gone = Promise.withResolvers<void>();
    await using one = await tunnelled((_, response) => {
      response.once('close', gone.resolve);
      response.write('x');
    });
    const request = http.get({ agent: one.agent, path: '/follow' });
    await once(request, 'response');
    request.on('error', () => {}).destroy();
    await gone.promise;
  });

  test('without a daemon behind it, or once it has ended, a connection fails at once', async () => {
    await using one = await tunnelled(count);
    one.server.close();
    await once(one.server, 'close');
    await expect(one.ask(Buffer.alloc(1))).rejects.toMatchObject({ code: 'ECONNRESET' });
    one.near.end().destroy();
    await one.served;
    await expect.poll(() => one.tunnel.isOver).toBe(true);
    await expect(one.ask(Buffer.alloc(1))).rejects.toMatchObject({ code: 'ECONNRESET' });
  });
});

test('nothing is sent to a socket that others could have made', async () => {
  const open = join(dir.path, 'open');
  mkdirSync(open);
  chmodSync(open, 0o777);
  const asked: string[] = [];
  await using one = await tunnelled(
    (request, response) => {
      asked.push(request.url ?? '');
      response.end();
    },
    join(open, 's'),
  );
  await expect(one.ask(Buffer.from('SECRET=1'))).rejects.toMatchObject({ code: 'ECONNRESET' });
  expect(asked).toEqual([]);
});

test('an answer of another host without an end is given up', async () => {
  await using one = await tunnelled((_, response) => {
    const more = (): void => void response.write(' '.repeat(100_000), more);
    more();
  });
  const client = createClient({ socket: 'ssh://gpuci', dial: one.tunnel.dial, version: '1', mostAnswer: 1 << 20 });
  await expect(client.status()).rejects.toMatchObject({
    code: 'E_API_ANSWER',
    message: expect.stringContaining('more than 1 MiB'),
  });
  client.close();
});

describe('the greeting', () => {
  const read = (...pieces: (string | Buffer)[]) => {
    const stream = new PassThrough();
    for (const piece of pieces) stream.write(piece);
    stream.end();
    return { stream, found: readGreeting(stream, never) };
  };

  test('comes after what a login shell prints, and leaves the rest in the stream', async () => {
    const line = greetingLine('1.2.3', null);
    const { stream, found } = read('Welcome!\nonejob-relay is nice', line.slice(0, 9), `${line.slice(9)}PRI`, '\0rest');
    expect(await found).toEqual({ protocol: 1, version: '1.2.3' });
    expect(String(stream.read())).toBe('PRI\0rest');
  });

  test('may say why there is no daemon', async () => {
    const error = { code: 'E_DAEMON_ABSENT', message: 'No daemon.', hint: null, retry: true };
    expect(await read(greetingLine('1.2.3', error)).found).toEqual({ version: '1.2.3', error });
  });

  test('never comes from a program that ends, or talks and talks', async () => {
    expect(await read('hello\n').found).toBeNull();
    expect(await read(Buffer.alloc(100_000, 'x')).found).toBeNull();
  });

  test('of a later protocol is refused', async () => {
    await expect(read('\nonejob-relay {"protocol":2,"version":"9.0.0"}\n').found).rejects.toMatchObject({ code: 'E_API_VERSION' });
  });
});

describe('an ssh that', () => {
  /** Stands for ssh. */
  function remote(script: string, patience = 20_000, more: Readonly<Record<string, string>> = {}) {
    writeFileSync(join(dir.path, 'ssh'), `#!/bin/sh\necho $$ >"${dir.path}/pid"\n${script}\n`);
    chmodSync(join(dir.path, 'ssh'), 0o755);
    const variables = { PATH: `${dir.path}:/usr/bin:/bin`, ...more };
    return createRemote({ host: parseSshUrl('ssh://gpuci'), variables, interactive: false, progress: () => {}, patience });
  }
  const isThere = (): boolean => {
    try {
      process.kill(Number(readFileSync(join(dir.path, 'pid'), 'utf8')), 0);
      return true;
    } catch {
      return false;
    }
  };

  test.each([
    ['refuses the key', 'echo "Permission denied (publickey)." >&2; exit 255', 'it refused the login'],
    ['finds no onejob', 'exit 127', 'there is no onejob there'],
    ['dies', 'kill -9 $$', 'ssh was ended'],
    ['ends without a word', 'exit 0', 'ssh ended with 0'],
    ['ends in the middle of the greeting', 'printf "\\nonejob-rel"; exit 255', 'the connection was cut'],
  ])('%s', async (_, script, why) => {
    const one = remote(script);
    await expect(one.dial(never)).rejects.toMatchObject({ code: 'E_HOST', message: `Cannot reach ssh://gpuci: ${why}.` });
    await one.close();
  });

  test('is started gets no variables of a job of gitlab-runner', async () => {
    const one = remote(`env >"${dir.path}/env"; exit 255`, 20_000, { CUSTOM_ENV_SECRET: 'hunter2', KEPT: 'yes' });
    await expect(one.dial(never)).rejects.toMatchObject({ code: 'E_HOST' });
    await one.close();
    const given = readFileSync(join(dir.path, 'env'), 'utf8');
    expect(given).toContain('KEPT=yes');
    expect(given).not.toContain('hunter2');
  });

  test('is silent is given up in time, and ended', async () => {
    const one = remote('trap "" TERM; while :; do sleep 0.1; done', 500);
    await expect(one.dial(never)).rejects.toMatchObject({
      code: 'E_HOST',
      retry: true,
      message: expect.stringContaining('no answer within 0.5 s'),
    });
    expect(isThere()).toBe(false);
  });

  test('is silent ends with the command that no longer waits', async () => {
    const stop = new AbortController();
    const one = remote('exec sleep 1000');
    const dialled = one.dial(stop.signal);
    await expect.poll(isThere).toBe(true);
    stop.abort(new Error('stop'));
    await expect(dialled).rejects.toThrow('stop');
    expect(isThere()).toBe(false);
  });

  test('dies later cuts connections off, and the next one starts another', async () => {
    const one = remote(`printf '\\nonejob-relay {"protocol":1,"version":"1"}\\n'; sleep 0.2; kill -9 $$`);
    const dial = await one.dial(never);
    const stream = dial();
    await new Promise((resolve) => stream.once('close', resolve));
    const before = readFileSync(join(dir.path, 'pid'), 'utf8');
    const again = await one.dial(never);
    expect(readFileSync(join(dir.path, 'pid'), 'utf8')).not.toBe(before);
    expect(again).not.toBe(dial);
    await one.close();
    expect(isThere()).toBe(false);
  });
});
