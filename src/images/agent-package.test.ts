/** Packages of agents: from a server on this host, and from files. */
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { scratch } from '../../test/support/scratch.ts';
import type { AgentPackage } from '../ports/ci-service.ts';
import { getPackage, prunePackages } from './agent-package.ts';

const body = Buffer.alloc(300_000, 'agent');
const sha256 = createHash('sha256').update(body).digest('hex');

type Answer = (request: IncomingMessage, reply: ServerResponse) => void;
const sentOn =
  (location: string): Answer =>
  (request, reply) =>
    request.url === '/whole' ? whole(request, reply) : reply.writeHead(302, { location }).end();
const whole: Answer = (_, reply) => reply.writeHead(200, { 'content-length': body.length }).end(body);

async function server(answer: Answer) {
  const asked: string[] = [];
  const http = createServer((request, reply) => {
    asked.push(request.url ?? '');
    answer(request, reply);
  });
  await new Promise<void>((done) => http.listen(0, '127.0.0.1', done));
  onTestFinished(() => {
    http.closeAllConnections();
    http.close();
  });
  return { url: `http://127.0.0.1:${(http.address() as AddressInfo).port}`, asked };
}

function folder() {
  const dir = scratch();
  onTestFinished(() => dir[Symbol.dispose]());
  return join(dir.path, 'packages');
}

const agent = (from: string, more: Partial<AgentPackage> = {}): AgentPackage => ({
  type: 'azure-pipelines',
  version: '5.278.0',
  from,
  sha256,
  ...more,
});
const never = new AbortController().signal;
const quiet = () => {};

describe('from an address', () => {
  test('is fetched once, checked, and reported in percent', async () => {
    const { url, asked } = await server(whole);
    const dir = folder();
    const said: string[] = [];
    const wanted = agent(`${url}/vsts-agent.tar.gz`);
    const first = await getPackage(wanted, { dir }, (line) => said.push(line), never);
    expect([readFileSync(first.path).equals(body), first.sha256]).toEqual([true, sha256]);
    expect(said[0]).toBe('fetching the agent 5.278.0');
    expect(said.at(-1)).toMatch(/^fetching the agent 5\.278\.0: (?:9[5-9]|100) %$/);
    expect(await getPackage(wanted, { dir }, quiet, never)).toEqual(first);
    expect([asked.length, readdirSync(dir).length]).toEqual([1, 1]);
  });

  test('is fetched again when what is there is damaged', async () => {
    const { url, asked } = await server(whole);
    const dir = folder();
    const { path } = await getPackage(agent(url), { dir }, quiet, never);
    writeFileSync(path, 'cut off');
    await getPackage(agent(url), { dir }, quiet, never);
    expect([asked.length, readFileSync(path).equals(body)]).toEqual([2, true]);
  });

  test.each<[string, Answer, Partial<AgentPackage>, RegExp, boolean]>([
    ['another checksum', whole, { sha256: 'ab'.repeat(32) }, /its SHA-256 is [0-9a-f]{64}, not abab/, false],
    ['not there', (_, reply) => reply.writeHead(404).end('x'), {}, /it answered 404/, true],
    ['cut off', (_, reply) => void reply.writeHead(200, { 'content-length': 9 }).write('x', () => reply.destroy()), {}, /:/, true],
    [
      'sent on without https',
      sentOn('http://192.0.2.1/b?sig=secret'),
      {},
      /redirected to http:\/\/192\.0\.2\.1\/b, but only https/,
      true,
    ],
    ['sent on without https in between', sentOn('http://192.0.2.1/back'), {}, /but only https is safe/, true],
    ['sent on to no address', sentOn('http://'), {}, /redirected to an invalid address/, true],
    ['sent on for ever', sentOn('a.tar.gz'), {}, /redirected more than 5 times/, true],
    ['too large', (_, reply) => reply.end(Buffer.alloc(500_000)), { sha256: null }, /more than 400000 bytes/, true],
  ])('%s: says so and leaves nothing', async (_, answer, more, why, retry) => {
    const { url } = await server(answer);
    const dir = folder();
    const asked = agent(`${url}/a.tar.gz`, more);
    const slow = AbortSignal.timeout(5_000);
    const error = await getPackage(asked, { dir, limit: 400_000, fetch: onlyHere(url) }, quiet, slow).catch(
      (each: unknown) => each,
    );
    expect(error).toMatchObject({ code: 'E_AGENT_PACKAGE', retry, message: expect.stringMatching(why) });
    expect(error).toMatchObject({ message: expect.stringContaining(`${url}/a.tar.gz`), hint: expect.stringMatching(/./) });
    expect(readdirSync(dir)).toEqual([]);
  });

  test('is fetched from where it was sent on to, however each server names the place', async () => {
    const { url, asked } = await server((request, reply) => {
      const way: Record<string, [number, string]> = { '/a': [301, 'b/c'], '/b/c': [307, '/d'], '/d': [302, `${url}/e`] };
      const [status, location] = way[request.url ?? ''] ?? [];
      if (status === undefined) whole(request, reply);
      else reply.writeHead(status, { location }).end('over there');
    });
    const { sha256: found } = await getPackage(agent(`${url}/a`), { dir: folder() }, quiet, never);
    expect([found, asked]).toEqual([sha256, ['/a', '/b/c', '/d', '/e']]);
  });

  test('without a checksum is taken, and that is said each time', async () => {
    const { url } = await server(whole);
    const said: string[] = [];
    const logged: unknown[] = [];
    const parts = { dir: folder(), warn: (text: string, fields: object) => void logged.push({ text, ...fields }) };
    const wanted = agent(url, { sha256: null });
    for (let times = 0; times < 2; times++) await getPackage(wanted, parts, (line) => said.push(line), never);
    expect(said.filter((line) => line.startsWith('warning: no SHA-256 is known for the agent 5.278.0'))).toHaveLength(2);
    expect(logged).toEqual([expect.objectContaining({ version: '5.278.0', from: url }), expect.anything()]);
    await getPackage(agent(url), parts, quiet, never);
    expect(logged).toHaveLength(2);
  });

  test.each(['http://example.org/a.tar.gz', 'ftp://example.org/a', 'a.tar.gz'])('%s is not asked', async (from) => {
    const asking = getPackage(agent(from), { dir: folder() }, quiet, never);
    await expect(asking).rejects.toMatchObject({ code: 'E_AGENT_PACKAGE', retry: false, hint: expect.stringContaining('https') });
  });

  test('is given up when it is aborted', async () => {
    const stop = new AbortController();
    const { url } = await server((_, reply) => {
      reply.writeHead(200, { 'content-length': 9 }).write('x');
      setImmediate(() => stop.abort(new Error('enough')));
    });
    const dir = folder();
    await expect(getPackage(agent(url), { dir }, quiet, stop.signal)).rejects.toThrow('enough');
    expect(readdirSync(dir)).toEqual([]);
  });
});

/** No test may ask the world: elsewhere everything leads back to `here`, where it is whole. */
function onlyHere(here: string): typeof fetch {
  const ask: typeof fetch = async (asked, init) => {
    const url = new URL(String(asked));
    const answer =
      url.hostname === '127.0.0.1'
        ? await fetch(url, { ...init, redirect: 'manual' })
        : new Response(null, { status: 302, headers: { location: `${here}/whole` } });
    const location = answer.headers.get('location');
    return location === null || init?.redirect !== 'follow' ? answer : ask(new URL(location, url), init);
  };
  return ask;
}

describe('from a file', () => {
  test('is taken where it lies, with its checksum', async () => {
    const dir = folder();
    const path = join(import.meta.dirname, 'plan.ts');
    const expected = createHash('sha256').update(readFileSync(path)).digest('hex');
    expect(await getPackage(agent(path, { sha256: null }), { dir }, quiet, never)).toEqual({ path, sha256: expected });
    await expect(getPackage(agent(path), { dir }, quiet, never)).rejects.toThrow(`its SHA-256 is ${expected}, not ${sha256}`);
  });

  test('that is not there is said', async () => {
    const asking = getPackage(agent('/nowhere/a.tar.gz'), { dir: folder() }, quiet, never);
    await expect(asking).rejects.toMatchObject({ code: 'E_AGENT_PACKAGE', message: expect.stringContaining('ENOENT') });
  });
});

test('what no image is built from any more is removed', async () => {
  const { url } = await server(whole);
  const dir = folder();
  const [old, now] = [agent(url, { version: '5.277.0' }), agent(url)];
  for (const one of [old, now]) await getPackage(one, { dir }, quiet, never);
  writeFileSync(join(dir, 'azure-pipelines-5.1.0-x.tar.gz.99.part'), '');
  await prunePackages(dir, [now]);
  expect(readdirSync(dir)).toEqual([expect.stringMatching(/^azure-pipelines-5\.278\.0-/)]);
  await prunePackages(join(dir, 'none'), []);
});
