/** What a job's runner may ask of the caches of its host, and what a hostile job tries with the address that it knows. */
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { type FilterBench, filterBench } from '../../../test/kit/filter.ts';
import { eachScratch } from '../../../test/support/each-scratch.ts';
import { attempt } from '../../base/errors.ts';
import { StoredCaches } from '../stored/store.ts';
import { cacheRoot, cacheRules, cacheRulesOf, type SealedCaches } from './cache-calls.ts';

const place = eachScratch();
const [trusted, untrusted, others] = ['lab/acme%2Fapp/trusted', 'lab/acme%2Fapp/untrusted-0a', 'lab/acme%2Fother/trusted'];
let bench: FilterBench;
beforeEach(async () => {
  const caches = new StoredCaches(place.path, Date.now);
  bench = await filterBench(undefined, {}, { [cacheRulesOf]: cacheRules }, caches);
  bench.left.leave('a1-caches', '');
});
afterEach(() => bench[Symbol.asyncDispose]());

const own: SealedCaches = { as: 's3', writes: trusted ?? '', reads: [trusted ?? ''], limits: { bytes: 2 ** 20, minFree: 0 } };
const fork: SealedCaches = { ...own, writes: untrusted ?? '', reads: [untrusted ?? ''] };
const reader: SealedCaches = { ...own, writes: null };
const secret = 'what the runner shows';
const signed = `X-Amz-Credential=${encodeURIComponent(secret)}%2F20261130%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Signature=0`;

async function ask(
  method: string,
  caches: SealedCaches,
  path: string,
  body?: string | Uint8Array,
  headers: Record<string, string> = {},
) {
  const endpoint = `http://127.0.0.1:${bench.port}`;
  const token = bench.token('caches', { rules: cacheRulesOf, endpoint, token: secret, build: null, file: 'a1-caches', caches });
  const answer = await fetch(`${endpoint}/${cacheRoot}/${token}/${path}`, { method, headers, ...(body !== undefined && { body }) });
  return { status: answer.status, text: await answer.text(), headers: answer.headers };
}
const put = (caches: SealedCaches, key: string, body = 'archive', query = signed) =>
  ask('PUT', caches, `project/7/${key}?${query}`, body);
const get = async (caches: SealedCaches, key: string, query = signed) => {
  const { status, text } = await ask('GET', caches, `project/7/${key}?${query}`);
  return status === 200 ? text : status;
};

describe('a bucket', () => {
  it('gives back what was put there, to jobs of the same project and trust only', async () => {
    expect(await get(own, 'npm')).toBe(404);
    expect((await put(own, 'npm')).status).toBe(200);
    expect(await get(own, 'npm')).toBe('archive');
    expect((await put(own, 'npm', 'newer')).status).toBe(200);
    expect(await get(own, 'npm')).toBe('newer');
    expect(await get({ ...own, reads: [others ?? ''], writes: others ?? '' }, 'npm')).toBe(404);
    expect(await get(fork, 'npm')).toBe(404);
    expect((await ask('GET', own, `project/7/npm?${signed}`, undefined, { range: 'bytes=1-2' })).text).toBe('ew');
  });

  it('a fork writes nothing that trusted jobs read, whatever project and key it names', async () => {
    await put(own, 'npm-protected', 'good');
    for (const key of ['npm-protected', 'x%2F..%2Fnpm', '..%2F..%2Ftrusted%2Fnpm', '%252e%252e/npm'])
      await put(fork, key, 'poison');
    expect((await put(reader, 'npm-protected', 'poison')).status).toBe(403);
    expect(await get(own, 'npm-protected')).toBe('good');
    expect(readdirSync(join(place.path, trusted ?? '')).sort()).toEqual(['.parts', 'npm-protected']);
    // It may read it if the config says so, also where its own key ends otherwise.
    expect(await get(reader, 'npm-non_protected')).toBe('good');
    expect(await get(fork, 'npm-non_protected')).toBe(404);
  });

  it('an address without what the runner shows besides opens nothing', async () => {
    await put(own, 'npm');
    for (const query of ['', signed.replace('runner', 'log')]) {
      expect(await get(own, 'npm', query)).toBe(403);
      expect((await put(own, 'npm', 'poison', query)).status).toBe(403);
    }
    expect(await get(own, 'npm')).toBe('archive');
  });

  it('takes nothing that is too large, or without a length, and keeps no half of it', async () => {
    expect((await put(own, 'npm', 'x'.repeat(2 ** 20 + 1))).status).toBe(413);
    expect((await put(own, 'npm', '')).status).toBe(413);
    const stream = new ReadableStream({ pull: (to) => to.enqueue(Buffer.alloc(64 * 1024)) });
    const how = { method: 'PUT', body: stream, duplex: 'half' } as RequestInit;
    const token = bench.token('caches', { rules: cacheRulesOf, token: secret, file: 'a1-caches', caches: own });
    const sent = fetch(`http://127.0.0.1:${bench.port}/${cacheRoot}/${token}/project/7/npm?${signed}`, how);
    expect(
      await sent.then(
        ({ status }) => status,
        () => 413,
      ),
    ).toBe(413);
    expect(existsSync(join(place.path, trusted ?? '', 'npm'))).toBe(false);
    expect(await get(own, 'npm')).toBe(404);
  });

  it.each(['DELETE', 'POST'])('has no %s', async (method) => {
    expect((await ask(method, own, `project/7/npm?${signed}`)).status).toBe(405);
  });

  it('an address opens nothing once its agent has ended', async () => {
    await put(own, 'npm');
    bench.left.forget('a1-caches');
    expect(await get(own, 'npm')).toBe(401);
    expect((await put(own, 'npm', 'poison')).status).toBe(401);
  });

  it('a job that ends while it writes leaves no half that takes room', async () => {
    const stop = new AbortController();
    const stream = new ReadableStream({ start: (to) => to.enqueue(Buffer.alloc(1024)) });
    const token = bench.token('caches', { rules: cacheRulesOf, token: secret, file: 'a1-caches', caches: own });
    const headers = { 'content-length': String(2 ** 20) };
    const how = { method: 'PUT', body: stream, duplex: 'half', signal: stop.signal, headers } as RequestInit;
    const sent = fetch(`http://127.0.0.1:${bench.port}/${cacheRoot}/${token}/project/7/npm?${signed}`, how).catch(() => null);
    const parts = () => attempt(() => readdirSync(join(place.path, trusted ?? '', '.parts'))) ?? [];
    await expect.poll(parts).toHaveLength(1);
    stop.abort();
    await sent;
    await expect.poll(parts).toEqual([]);
  });

  it('no other sealed token of a job opens caches', async () => {
    const token = bench.token('caches', { rules: cacheRulesOf, token: secret });
    expect((await fetch(`http://127.0.0.1:${bench.port}/${cacheRoot}/${token}/project/7/npm?${signed}`)).status).toBe(403);
  });
});

describe('caches of Actions', () => {
  const actions = (caches: SealedCaches): SealedCaches => ({ ...caches, as: 'actions' });
  const call = async (method: string, caches: SealedCaches, path: string, body?: string, more = {}) => {
    const headers = { authorization: `Bearer ${secret}`, ...more };
    const { status, text } = await ask(method, actions(caches), `_apis/artifactcache/${path}`, body, headers);
    return { status, json: text === '' ? null : JSON.parse(text) };
  };
  const reserve = (caches: SealedCaches, key: string, size: number) =>
    call('POST', caches, 'caches', JSON.stringify({ key, version: 'v', cacheSize: size }));
  const part = (caches: SealedCaches, id: number, from: number, text: string) =>
    call('PATCH', caches, `caches/${id}`, text, { 'content-range': `bytes ${from}-${from + text.length - 1}/*` });
  const commit = (caches: SealedCaches, id: number, size: number) => call('POST', caches, `caches/${id}`, JSON.stringify({ size }));
  async function save(caches: SealedCaches, key: string, text: string): Promise<number> {
    const { json, status } = await reserve(caches, key, text.length);
    if (status !== 200) return status;
    await part(caches, json.cacheId, 4, text.slice(4));
    await part(caches, json.cacheId, 0, text.slice(0, 4));
    return (await commit(caches, json.cacheId, text.length)).status;
  }
  async function restore(caches: SealedCaches, keys: string, version = 'v'): Promise<unknown> {
    const { status, json } = await call('GET', caches, `cache?keys=${encodeURIComponent(keys)}&version=${version}`);
    if (status !== 200) return status;
    return [json.cacheKey, await (await fetch(json.archiveLocation)).text()];
  }

  it('are written in parts, and found by their key or what it begins with', async () => {
    expect(await restore(own, 'npm-1')).toBe(204);
    expect(await save(own, 'npm-1', 'an archive')).toBe(200);
    expect(await restore(own, 'npm-1')).toEqual(['npm-1', 'an archive']);
    expect(await restore(own, 'npm-2,npm-')).toEqual(['npm-1', 'an archive']);
    expect(await restore(own, 'npm-1', 'other')).toBe(204);
    expect(await restore(fork, 'npm-1')).toBe(204);
    expect(await restore(reader, 'npm-1')).toEqual(['npm-1', 'an archive']);
    const long = `linux-${'k'.repeat(400)}`;
    expect(await save(own, long, 'a long one')).toBe(200);
    expect(await restore(own, long)).toEqual([long, 'a long one']);
  });

  it('never change, and a fork writes its own only', async () => {
    await save(own, 'npm', 'good');
    expect(await save(own, 'npm', 'changed')).toBe(400);
    expect(await save(fork, 'npm', 'poison')).toBe(200);
    expect(await save(reader, 'npm', 'poison')).toBe(403);
    expect(await restore(own, 'npm')).toEqual(['npm', 'good']);
    expect(await restore(fork, 'npm')).toEqual(['npm', 'poison']);
    const { json } = await reserve(own, 'pip', 4);
    expect((await part(fork, json.cacheId, 0, 'evil')).status).toBe(404);
    expect((await commit(fork, json.cacheId, 4)).status).toBe(400);
  });

  it('take no more than was said, and no part of nothing', async () => {
    const { json } = await reserve(own, 'npm', 4);
    expect((await part(own, json.cacheId, 2, 'long')).status).toBe(400);
    const far = { 'content-range': 'bytes 900000000000000-900000000000003/*' };
    expect((await call('PATCH', own, `caches/${json.cacheId}`, 'evil', far)).status).toBe(400);
    expect((await commit(own, json.cacheId, 8)).status).toBe(400);
    expect((await part(own, 1, 0, 'long')).status).toBe(404);
    expect((await reserve(own, 'npm', 2 ** 21)).status).toBe(413);
    expect((await reserve(own, 'a\nb', 4)).status).toBe(400);
    expect((await call('POST', own, 'caches', '{"key":"a"')).status).toBe(400);
  });

  it('show nothing without the token of the job', async () => {
    await save(own, 'npm', 'good');
    for (const authorization of ['', 'Bearer other'])
      expect((await call('GET', own, 'cache?keys=npm&version=v', undefined, { authorization })).status).toBe(401);
  });
});
