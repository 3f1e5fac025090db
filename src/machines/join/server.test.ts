/** Machines and their controller over HTTP: the real client and the real server, with a handler in memory. */
import { writeFileSync } from 'node:fs';
import http from 'node:http';
import https from 'node:https';
import { connect } from 'node:net';
import { join } from 'node:path';
import type { Duplex } from 'node:stream';
import type { TLSSocket } from 'node:tls';
import { afterEach, describe, expect, it } from 'vitest';
import { memoryHandler } from '../../../test/kit/machine-handler.ts';
import { scratch } from '../../../test/support/scratch.ts';
import { createAuthority } from '../../../test/support/tls-front.ts';
import { openPorts } from '../../http/ports.ts';
import { systemClock } from '../../system/system-clock.ts';
import { createJoinClient } from './client.ts';
import { hashOf, newSecret, type StageName } from './protocol.ts';
import { JoinServer } from './server.ts';

const endings: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const end of endings.splice(0).reverse()) await end();
});

const [run, other] = ['onejob-0123456789abcdef', 'onejob-fedcba9876543210'];
const never = new AbortController().signal;

/** The controller, listening, with a machine that it waits for. */
async function bench(tls: { cert: string; key: string } | null = null, tunnel: (pipe: Duplex) => unknown = () => true) {
  const world = memoryHandler();
  const said: string[] = [];
  const line = (event: string, fields: object = {}) => void said.push(`${event} ${JSON.stringify(fields)}`);
  const server = new JoinServer({
    listen: { host: '127.0.0.1', port: 0 },
    tls,
    key: 'cloud.listen',
    handler: {
      ...world.handler,
      get package() {
        return world.handler.package;
      },
      tunnel(of, pipe) {
        pipe.resume().once('end', () => pipe.destroy());
        return tunnel(pipe) !== false && world.handler.tunnel(of, pipe);
      },
    },
    clock: systemClock,
    log: { info: line, warn: line, error: line },
  });
  await server.open();
  endings.push(() => server.close());
  const url = `http${tls === null ? '' : 's'}://127.0.0.1:${server.port}`;
  const token = world.expect(run, {
    config: 'pools: {}\n',
    files: [{ path: '/run/onejob-cloud/token', mode: '0600', content: Buffer.from('s3cret').toString('base64') }],
    beat: 30,
  });
  const client = (of = run) => createJoinClient({ url, run: of, clock: systemClock, fetch });
  const post = async (path: string, body: string | object, headers: Readonly<Record<string, string>> = {}) => {
    const text = typeof body === 'string' ? body : JSON.stringify(body);
    return (await fetch(`${url}${path}`, { method: 'POST', body: text, headers })).status;
  };
  const bearer = (secret: string) => ({ authorization: `Bearer ${secret}` });
  const stage = (name: StageName, secret: string, text = '') => post('/cloud/stage', { run, stage: name, text }, bearer(secret));
  const take = (credential: string, with_ = token) => client().join({ token: with_, credential, version: '1' }, never);
  /** Binds the machine to a credential. */
  const bind = (): string => {
    const credential = newSecret();
    void world.handler.bind(run, hashOf(credential));
    return credential;
  };
  return { ...world, server, said, url, token, client, post, bearer, stage, take, bind };
}

const beat = { busy: 1, agents: 2, slots: 3, waiting: null, idleFor: 0, problem: null };

it('takes its port over from the one before, so that nobody gets it in between', async () => {
  const log = { info: () => {}, warn: () => {}, error: () => {} };
  const ports = await openPorts([], log);
  endings.push(async () => ports.close());
  const first = await ports.take({ host: '127.0.0.1', port: 0 });
  const listen = { host: '127.0.0.1', port: first.address.port };
  first.release();
  ports.want([listen]);
  const ask = () => fetch(`http://127.0.0.1:${listen.port}/cloud/join`).then(({ status }) => status);
  for (let at = 0; at < 2; at += 1) {
    const server = new JoinServer({
      listen,
      tls: null,
      key: 'join.listen',
      handler: memoryHandler().handler,
      clock: systemClock,
      log,
      ports,
    });
    await server.open();
    expect([server.port, await ask()]).toEqual([listen.port, 405]);
    await server.close();
    ports.closeUnused();
    await expect(ports.take({ ...listen, host: '0.0.0.0' })).rejects.toMatchObject({ code: 'EADDRINUSE' });
  }
});

describe('a machine', () => {
  it('tells its stages with the token, joins once, and beats with its own credential', async () => {
    const { client, token, take, stages, beats, order, stored, said } = await bench();
    const credential = newSecret();
    await client().stage('booted', '', token, never);
    await client().stage('driver-ok', 'NVIDIA L4, 595.91.07', token, never);
    const got = await take(credential);
    expect(got).toMatchObject({ config: 'pools: {}\n', files: [{ mode: '0600' }], beat: 30 });
    await client().stage('joined', '', credential, never);
    expect(await client().beat(beat, credential, never)).toBe('stay');
    order(run, 'drain');
    expect(await client().beat(beat, credential, never)).toBe('drain');
    expect(stages.map(({ stage }) => stage)).toEqual(['booted', 'driver-ok', 'joined']);
    expect(beats[0]).toEqual({ run, ...beat });
    // Neither the store nor the log has a secret.
    for (const secret of [token, credential]) expect(stored() + said.join()).not.toContain(secret);
    expect(stored()).toContain(hashOf(token));
  });

  it('gets the same answer when it asks again with the same credential, until it has said that it joined', async () => {
    const { client, take, thefts } = await bench();
    const credential = newSecret();
    expect(await take(credential)).toEqual(await take(credential));
    await client().stage('joined', '', credential, never);
    await expect(take(credential)).rejects.toMatchObject({ code: 'E_CLOUD_DENIED', retry: false });
    expect(thefts).toEqual([]);
  });

  it('is told to try again while the handler cannot answer, and nothing of the reason', async () => {
    const { failWith, take, url } = await bench();
    failWith(new Error('the disk is full'));
    await expect(take(newSecret())).rejects.toMatchObject({ code: 'E_CLOUD_ANSWER', retry: true });
    const answer = await fetch(`${url}/cloud/beat`, { method: 'POST', body: JSON.stringify({ run, ...beat }) });
    expect([answer.status, answer.headers.get('retry-after'), await answer.text()]).toEqual([503, '5', '']);
    failWith(null);
    await take(newSecret());
  });

  it('can lose its answer: it was bound before it was sent', async () => {
    const { post, token, take } = await bench();
    const credential = newSecret();
    expect(await post('/cloud/join', { run, token, credential, version: '1' })).toBe(200);
    await take(credential);
  });
});

describe('a token that was used', () => {
  it('with another credential is a theft, in whichever order they come', async () => {
    const { take, thefts } = await bench();
    await take(newSecret());
    await expect(take(newSecret())).rejects.toMatchObject({ code: 'E_CLOUD_DENIED' });
    expect(thefts).toEqual([{ run, from: '127.0.0.1' }]);
  });

  it('is used by only one of two at the same moment', async () => {
    const { take, thefts } = await bench();
    const ends = await Promise.allSettled([take(newSecret()), take(newSecret())]);
    expect(ends.map(({ status }) => status).sort()).toEqual(['fulfilled', 'rejected']);
    expect(thefts).toHaveLength(1);
  });

  it('tells no stage any more', async () => {
    const { take, stage, token, stages } = await bench();
    await take(newSecret());
    expect(await stage('failed', token)).toBe(403);
    expect(stages).toEqual([]);
  });
});

describe('a stranger', () => {
  it('learns nothing: an unknown run, a wrong token and a given-up run are refused alike', async () => {
    const { post, bearer, token, forget, expect: expectRun, stages, thefts, url } = await bench();
    expectRun(other);
    const refused = async (of: string, secret: string) => [
      await post('/cloud/stage', { run: of, stage: 'booted' }, bearer(secret)),
      await post('/cloud/join', { run: of, token: secret, credential: newSecret(), version: '1' }),
      await post('/cloud/beat', { run: of, ...beat }, bearer(secret)),
      (await fetch(`${url}/cloud/onejob.tgz?run=${of}`, { headers: bearer(secret) })).status,
    ];
    const all = [403, 403, 403, 403];
    expect(await refused('onejob-0000000000000000', token)).toEqual(all);
    expect(await refused(run, newSecret())).toEqual(all);
    expect(await refused(other, token)).toEqual(all);
    forget(run);
    expect(await refused(run, token)).toEqual(all);
    expect([stages, thefts]).toEqual([[], []]);
  });

  it('with a token can only say what comes before a join', async () => {
    const { stage, token, post, bearer } = await bench();
    for (const name of ['joined', 'drained', 'preempted'] as const) expect(await stage(name, token)).toBe(403);
    expect(await post('/cloud/beat', { run, ...beat }, bearer(token))).toBe(403);
  });

  it('cannot send much, or what is not understood', async () => {
    const { post, bearer, token, url, stage, stages } = await bench();
    const head = bearer(token);
    expect(await post('/cloud/stage', `{"run":"${run}","stage":"booted","text":"${'x'.repeat(70_000)}"}`, head)).toBe(413);
    expect(await post('/cloud/stage', { run, stage: 'failed', text: 'x'.repeat(16_385) }, head)).toBe(400);
    expect(await post('/cloud/stage', { run, stage: 'rich' }, head)).toBe(400);
    expect(await post('/cloud/stage', 'hello', head)).toBe(400);
    expect(await post('/cloud/other', {}, head)).toBe(404);
    expect(await post('/__proto__', {}, head)).toBe(404);
    const got = await fetch(`${url}/cloud/join`);
    expect([got.status, got.headers.get('allow')]).toEqual([405, 'POST']);
    expect(await stage('failed', token, 'one\ntwo\u001b[31m\u0000')).toBe(204);
    expect(stages).toEqual([{ run, stage: 'failed', text: 'one\ntwo [31m ' }]);
  });

  it('cannot send much without saying its length', async () => {
    const { server } = await bench();
    const socket = connect(server.port ?? 0, '127.0.0.1').on('error', () => {});
    socket.write('POST /cloud/join HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n');
    for (let at = 0; at < 5; at++) socket.write(`4000\r\n${'x'.repeat(0x4000)}\r\n`);
    const [answer] = (await new Promise((resolve) => socket.once('data', (data) => resolve([String(data)])))) as [string];
    expect(answer).toMatch(/^HTTP\/1.1 413/);
    socket.destroy();
  });
});

describe('the package', () => {
  it('is given to who has the token or the credential, and is absent when it is served elsewhere', async () => {
    const { url, token, bearer, serve, take } = await bench();
    const get = (secret: string) => fetch(`${url}/cloud/onejob.tgz?run=${run}`, { headers: bearer(secret) });
    expect((await get(token)).status).toBe(404);
    using folder = scratch();
    const path = join(folder.path, 'onejob.tgz');
    const bytes = Buffer.alloc(3_000_000, 'onejob');
    writeFileSync(path, bytes);
    serve(path);
    const answer = await get(token);
    expect(answer.headers.get('content-length')).toBe('3000000');
    expect(Buffer.from(await answer.arrayBuffer()).equals(bytes)).toBe(true);
    const credential = newSecret();
    await take(credential);
    expect((await get(credential)).status).toBe(200);
  });

  it('that does not exist makes the machine try again', async () => {
    const { url, token, bearer, serve } = await bench();
    serve('/nonexistent/onejob.tgz');
    expect((await fetch(`${url}/cloud/onejob.tgz?run=${run}`, { headers: bearer(token) })).status).toBe(503);
  });
});

/** Asks for a tunnel: the answer's first line, or `closed`. The connection is kept, and closed with the test. */
function ask(url: string, path: string, headers: Readonly<Record<string, string>>, ca?: string): Promise<string> {
  return new Promise((resolve) => {
    const options = { headers: { connection: 'Upgrade', ...headers }, agent: false, ...(ca !== undefined && { ca }) };
    const request = (ca === undefined ? http : https).request(`${url}${path}`, options);
    request.on('upgrade', (response, socket, head) => {
      endings.push(async () => socket.destroy());
      // The server may close it right after its answer.
      const closed = () => resolve('closed');
      socket.on('error', () => {}).once('close', closed);
      socket.once('data', (data) => resolve(`${response.statusCode} ${data}`));
      socket.unshift(head);
      socket.resume();
    });
    request.on('response', (response) => resolve(`answered ${response.statusCode}`));
    request.on('error', () => resolve('closed')).end();
  });
}

describe('a tunnel', () => {
  const upgrade = 'onejob-tunnel';
  const path = `/cloud/tunnel?run=${run}`;
  const kept = (pipes: readonly { pipe: Duplex }[]) => pipes.filter(({ pipe }) => !pipe.destroyed).length;

  it.each(['http', 'https'] as const)('is opened over %s for who has the credential', async (scheme) => {
    using folder = scratch();
    const authority = createAuthority(folder.path);
    authority.issue('127.0.0.1');
    const tls = { cert: join(folder.path, 'cert.pem'), key: join(folder.path, 'key.pem') };
    const { url, bearer, bind, pipes } = await bench(scheme === 'http' ? null : tls, (pipe) => void pipe.write('hello'));
    const secret = bind();
    const ca = scheme === 'http' ? undefined : authority.certificate;
    expect(await ask(url, path, { upgrade, ...bearer(secret) }, ca)).toBe('101 hello');
    expect([pipes.map((one) => one.run), kept(pipes)]).toEqual([[run], 1]);
  });

  it('is closed to everybody else, and to other requests, without a word', async () => {
    const { url, bearer, bind, token, pipes, expect: expectRun, forget, said } = await bench();
    const secret = bind();
    const others = expectRun(other);
    const tries: [string, Record<string, string>][] = [
      [path, {}],
      [path, bearer(token)],
      [path, bearer(newSecret())],
      [path, bearer(others)],
      [`/cloud/tunnel?run=${other}`, bearer(secret)],
      ['/cloud/tunnel?run=onejob-0000000000000000', bearer(secret)],
      ['/cloud/tunnel?run=../../etc', bearer(secret)],
      ['/cloud/tunnel', bearer(secret)],
      ['/cloud/beat', bearer(secret)],
      ['//', bearer(secret)],
      [path, { ...bearer(secret), upgrade: 'websocket' }],
      [path, { ...bearer(secret), upgrade: 'onejob-tunnel, websocket' }],
    ];
    for (const [to, headers] of tries)
      expect(await ask(url, to, { upgrade, ...headers }), JSON.stringify([to, headers])).toBe('closed');
    expect((await fetch(`${url}${path}`, { headers: bearer(secret) })).status).toBe(404);
    forget(run);
    expect(await ask(url, path, { upgrade, ...bearer(secret) })).toBe('closed');
    expect(pipes).toEqual([]);
    expect(said.join()).not.toContain(secret);
  });

  it('that nobody wants, or for which the handler fails, is closed', async () => {
    const { url, bearer, bind, failWith } = await bench(null, () => false);
    const secret = bind();
    expect(await ask(url, path, { upgrade, ...bearer(secret) })).toBe('closed');
    failWith(new Error('the disk is full'));
    expect(await ask(url, path, { upgrade, ...bearer(secret) })).toBe('closed');
  });

  it('counts as a connection of its machine, which can have a few hundred', async () => {
    const { url, bearer, bind, pipes } = await bench(null, (pipe) => void pipe.write('hello'));
    const secret = bind();
    for (let at = 0; at < 384; at++) expect(await ask(url, path, { upgrade, ...bearer(secret) })).toBe('101 hello');
    expect(await ask(url, path, { upgrade, ...bearer(secret) })).toBe('closed');
    expect(kept(pipes)).toBe(384);
  });
});

describe('with TLS', () => {
  it('shows its certificate, and a renewed one after a refresh', async () => {
    using folder = scratch();
    const authority = createAuthority(folder.path);
    const tls = { cert: join(folder.path, 'cert.pem'), key: join(folder.path, 'key.pem') };
    authority.issue('127.0.0.1');
    const { server, url } = await bench(tls);
    const shown = () =>
      new Promise<string>((resolve, reject) => {
        const options = { method: 'POST', ca: authority.certificate, agent: false } as const;
        const request = https.request(`${url}/cloud/other`, options, (response) => {
          resolve(`${response.statusCode} ${(response.socket as TLSSocket).getPeerX509Certificate()?.serialNumber}`);
          response.resume();
        });
        request.once('error', reject).end();
      });
    const before = await shown();
    expect(before).toMatch(/^404 /);
    authority.issue('127.0.0.1');
    server.refresh();
    expect(await shown()).toMatch(/^404 /);
    expect(await shown()).not.toBe(before);
  });

  it('says what is wrong with its certificate, and where', async () => {
    const { server } = await bench({ cert: '/nonexistent/cert.pem', key: '/nonexistent/key.pem' });
    expect(server.problem).toMatchObject({
      why: expect.stringContaining('/nonexistent/cert.pem'),
      hint: expect.stringContaining('cloud.listen'),
    });
    expect(server.port).toBeNull();
  });
});
