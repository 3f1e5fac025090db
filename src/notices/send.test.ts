/** Targets that refuse, are silent or die, with real servers and programs. */
import { once } from 'node:events';
import { chmodSync, existsSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer, type RequestListener } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { setTimeout as after } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { eachScratch } from '../../test/support/each-scratch.ts';
import type { NotifyConfig } from '../config/config.ts';
import { systemClock } from '../system/system-clock.ts';
import { messageOf, testMessage } from './message.ts';
import { send, targetOf } from './send.ts';

const message = testMessage('box', 7);
const secret = 'T000/B000/hunter2hunter2hunter2';
const never = new AbortController().signal;

const dir = eachScratch();

function deliver(notify: Partial<NotifyConfig>, signal = never, told = message): Promise<string> {
  const env = { path: '/usr/bin:/bin', home: '/nowhere' };
  const whole = { webhook: null, command: null, timeout: 20_000, ...notify };
  return send(told, { notify: whole, env, clock: systemClock, fetch }, signal);
}

async function failure(given: Promise<unknown>) {
  const error = await given.then(
    () => null,
    (found: unknown) => found,
  );
  if (!(error instanceof Error)) throw new Error('it did not fail');
  expect(`${error.stack} ${JSON.stringify(error)}`).not.toContain('hunter2');
  return error;
}

/** A server for one test, and what it got. */
async function serve(listener: RequestListener) {
  const got: { url: string; type: string; body: unknown }[] = [];
  const server = createServer(async (request, response) => {
    let text = '';
    for await (const piece of request) text += piece;
    got.push({ url: request.url ?? '', type: request.headers['content-type'] ?? '', body: JSON.parse(text) });
    listener(request, response);
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  return {
    got,
    port,
    webhook: `http://127.0.0.1:${port}/services/${secret}`,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}

describe('a webhook', () => {
  test('gets the message as JSON, also by an address in a file, which is read each time', async () => {
    await using server = await serve((_, response) => response.end('ok\n'));
    const told = { key: 'disk', kind: 'disk' as const, subject: 'disk', message: 'Full.', hint: null, since: 1, at: 2 };
    expect(await deliver({ webhook: server.webhook }, never, messageOf({ ...told, state: 'ending' }, 'box'))).toBe(
      'it answered 200: ok',
    );
    expect(server.got).toMatchObject([
      {
        url: `/services/${secret}`,
        type: 'application/json',
        body: { event: 'over', kind: 'disk', text: expect.stringMatching(/^onejob on box: Over/) },
      },
    ]);
    const path = join(dir.path, 'url');
    const webhook = { kind: 'file', path, expires: null } as const;
    expect(await failure(deliver({ webhook }))).toMatchObject({ code: 'E_SECRET' });
    writeFileSync(path, `${server.webhook}\n`);
    expect(await deliver({ webhook })).toBe('it answered 200: ok');
  });

  test('that refuses says why, without its address', async () => {
    await using server = await serve((request, response) => response.writeHead(500).end(`no_service at ${request.url}`));
    const error = await failure(deliver({ webhook: server.webhook }));
    expect(error).toMatchObject({ code: 'E_NOTIFY', retry: true });
    expect(error.message).toBe(
      `Cannot deliver a message to webhook http://127.0.0.1:${server.port}: it answered 500: no_service at ….`,
    );
  });

  test('whose answer quotes the address anywhere, in part or decoded, does not show it', async () => {
    const token = 'hunter2%2Fhunter2%3Dhunter2hunter2hunter2';
    for (const quoted of [`${' '.padEnd(280, '.')}${token}`, decodeURIComponent(token), encodeURIComponent(token)]) {
      await using server = await serve((_, response) => response.writeHead(500).end(`no ${quoted}`));
      const error = await failure(deliver({ webhook: `http://127.0.0.1:${server.port}/services/${token}` }));
      expect(error.message).toContain('…');
    }
  });

  test('that moved is not followed: the message reaches no other host', async () => {
    await using other = await serve((_, response) => response.end());
    await using server = await serve((_, response) => response.writeHead(307, { location: other.webhook }).end());
    expect((await failure(deliver({ webhook: server.webhook }))).message).toContain(
      'it answered 307, and onejob follows no redirects',
    );
    expect(other.got).toEqual([]);
  });

  test('that is silent is given up in time', async () => {
    await using server = await serve(() => {});
    expect((await failure(deliver({ webhook: server.webhook, timeout: 300 }))).message).toContain('no answer within 0.3 s');
  });

  test('that hangs does not keep a daemon from stopping', async () => {
    await using server = await serve(() => stop.abort(new Error('stopping')));
    const stop = new AbortController();
    expect((await failure(deliver({ webhook: server.webhook }, stop.signal))).message).toBe('stopping');
  });

  test('whose connection is cut, or where nobody listens', async () => {
    let gone = '';
    {
      await using server = await serve((request) => request.socket.destroy());
      expect((await failure(deliver({ webhook: server.webhook }))).message).toContain('the connection was cut');
      gone = server.webhook;
    }
    expect((await failure(deliver({ webhook: gone }))).message).toContain('nothing listens there');
  });

  test.each([
    ['http://hooks.example/x', 'is not encrypted'],
    ['ftp://hooks.example/x', 'is not an https:// address'],
    ['https://me:hunter2@hooks.example/x', 'has a user and a password in it'],
    ['hunter2', 'is not an https:// address'],
  ])('is refused as %s', async (address, why) => {
    writeFileSync(join(dir.path, 'url'), address);
    const error = await failure(deliver({ webhook: { kind: 'file', path: join(dir.path, 'url'), expires: null } }));
    expect(error.message).toContain(why);
  });
});

describe('a command', () => {
  function program(script: string): [string] {
    const path = join(dir.path, 'tell');
    writeFileSync(path, `#!/bin/sh\n${script}\n`);
    chmodSync(path, 0o755);
    return [path];
  }

  test('gets the message on its input, and nothing of our environment', async () => {
    process.env.ONEJOB_TEST_SECRET = 'hunter2';
    const said = await deliver({ command: program(`cat >"${dir.path}/got"; env >"${dir.path}/env"; echo "$ONEJOB_SUBJECT"`) });
    delete process.env.ONEJOB_TEST_SECRET;
    expect(said).toBe('onejob on box: test');
    expect(JSON.parse(readFileSync(join(dir.path, 'got'), 'utf8'))).toEqual(message);
    expect(readFileSync(join(dir.path, 'env'), 'utf8')).not.toContain('hunter2');
    expect(readFileSync(join(dir.path, 'env'), 'utf8')).toContain(`ONEJOB_TEXT=${message.text}\n`);
  });

  test('may end without reading its input', async () => {
    const long = { ...message, text: 'x'.repeat(100_000) };
    expect(await deliver({ command: program('exec 0<&-; exit 0') }, never, long)).toBe('it exited with 0');
  });

  test('that fails says why', async () => {
    const error = await failure(deliver({ command: program('echo no mail server >&2; exit 3') }));
    expect(error).toMatchObject({ code: 'E_NOTIFY', message: expect.stringMatching(/: it exited with 3: no mail server\.$/) });
  });

  test('that does not exist', async () => {
    expect((await failure(deliver({ command: ['/nowhere/tell'] }))).message).toMatch(/command \/nowhere\/tell: .*ENOENT/);
  });

  test('that leaves its sender in the background has delivered, and the sender may finish', async () => {
    const command = program(
      `cat >/dev/null; (while [ ! -e "${dir.path}/go" ]; do sleep 0.01; done; echo sent >"${dir.path}/sent") & echo queued`,
    );
    expect(await deliver({ command })).toBe('queued');
    // Longer than a pipe may stay open after other commands.
    await after(400);
    writeFileSync(join(dir.path, 'go'), '');
    await expect.poll(() => existsSync(join(dir.path, 'sent'))).toBe(true);
  });

  test('that leaves something in the background for ever is rid of it after its timeout, or when onejob stops', async () => {
    const command = program(
      `sh -c 'echo $$ >>"${dir.path}/pids"; sleep 1000; :' & while [ ! -s "${dir.path}/pids" ]; do sleep 0.01; done`,
    );
    const isThere = () => existsSync(`/proc/${readFileSync(join(dir.path, 'pids'), 'utf8').trim().split('\n').at(-1)}/exe`);
    expect(await deliver({ command, timeout: 1_500 })).toBe('it exited with 0');
    expect(isThere()).toBe(true);
    await expect.poll(isThere).toBe(false);
    const stop = new AbortController();
    writeFileSync(join(dir.path, 'pids'), '');
    expect(await deliver({ command, timeout: 3_600_000 }, stop.signal)).toBe('it exited with 0');
    expect(isThere()).toBe(true);
    stop.abort();
    await expect.poll(isThere).toBe(false);
  });

  test('that hangs is killed with its children, also with one that left its group', async () => {
    const command = program(
      `setsid sh -c 'echo $$ >"${dir.path}/pid"; sleep 1000; :' & until [ -s "${dir.path}/pid" ]; do sleep 0.01; done; trap "" TERM; sleep 1000; :`,
    );
    const error = await failure(deliver({ command, timeout: 1_000 }));
    expect(error.message).toContain('it took longer than 1s and was killed');
    const pid = Number(readFileSync(join(dir.path, 'pid'), 'utf8'));
    await expect.poll(() => existsSync(`/proc/${pid}/exe`)).toBe(false);
  });
});

test('what people see of a target has no secret', () => {
  const shown = (notify: Partial<NotifyConfig>) => targetOf({ webhook: null, command: null, timeout: 1, ...notify });
  expect(shown({ webhook: `https://hooks.example/${secret}` })).toBe('webhook https://hooks.example');
  expect(shown({ webhook: { kind: 'env', variable: 'HOOK', expires: null } })).toBe('the webhook in environment variable HOOK');
  expect(shown({ command: ['/bin/mail', 'hunter2'] })).toBe('command /bin/mail');
});
