/**
 * What the runner of a job asks of the caches that its host keeps: as of a bucket of S3 (gitlab-runner 19.4, `cache/s3v2`), or as of
 * the cache server of Actions (gitea-runner 1.0.8, `act/artifactcache`). The sealed token names whose caches those are. A job writes
 * to those of its own project and trust only, and nothing that it says becomes a path.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { pipeline } from 'node:stream/promises';
import { z } from 'zod';
import { attempt, codeOf } from '../../base/errors.ts';
import { bytesOf } from '../../http/exchange.ts';
import { jsonOf } from '../../system/json.ts';
import { NoRoom, type StoredCaches, type StoredPart } from '../stored/store.ts';
import type { FilterRequest, Rules } from './rules.ts';
import type { Sealed } from './seal.ts';

/** What paths of its calls begin with; a bucket has the same name. */
export const cacheRoot = 'onejob-cache';

export type SealedCaches = NonNullable<Sealed['caches']>;

export const cacheRulesOf = 'caches';
export const cacheRules: Rules = { root: cacheRoot, scheme: null, judge: () => ({ kind: 'caches' }) };

interface CacheCall {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly sealed: Sealed;
  readonly caches: SealedCaches;
  readonly asked: FilterRequest;
  readonly store: StoredCaches;
}

/** An answer; null as its body: none. */
class Answer {
  readonly status: number;
  readonly json: unknown;

  constructor(status: number, json: unknown = null) {
    this.status = status;
    this.json = json;
  }
}

const no = (status: number, message: string): Answer => new Answer(status, { message });

/** `asked`: without the root and the sealed token. */
export async function serveCaches(call: CacheCall): Promise<void> {
  const { request, response, caches } = call;
  const done = await (caches.as === 's3' ? asBucket(call) : asActions(call)).catch((error: unknown) => {
    if (error instanceof NoRoom) return no(413, `onejob does not keep this cache: ${error.message}.`);
    return no(500, `The host cannot read or keep this cache (${codeOf(error) ?? 'unknown error'}).`);
  });
  if (done === null || response.headersSent) return;
  const body = done.json === null ? null : Buffer.from(JSON.stringify(done.json));
  // The unread rest of a body must not be taken for another call.
  const more = request.complete ? {} : { connection: 'close' };
  response.writeHead(done.status, {
    ...more,
    ...(body !== null && { 'content-type': 'application/json' }),
    'content-length': body?.length ?? 0,
  });
  response.end(body ?? undefined);
}

/** `project/ID/KEY`: the id says nothing that the token does not. */
async function asBucket(call: CacheCall): Promise<Answer | null> {
  const { request, sealed, caches, asked, store } = call;
  const shown = new URLSearchParams(asked.query).get('X-Amz-Credential')?.split('/')[0];
  if (shown !== sealed.token) return no(403, 'The credential is not that of the job.');
  const [project, id, ...rest] = asked.segments;
  const key = rest.join('/');
  if (project !== 'project' || id === undefined || key === '') return no(404, 'There is no such object.');
  if (request.method === 'PUT') {
    if (caches.writes === null) return no(403, 'This job may not write caches.');
    const part = await store.begin(caches.writes, key, lengthOf(request), caches.limits);
    // A job that ends meanwhile leaves no half, which would take the room of others.
    const isWhole = await write(request, part.handle, 0, lengthOf(request))
      .catch(() => false)
      .finally(() => part.handle.close());
    return finish(call, caches.writes, part, isWhole);
  }
  if (request.method !== 'GET') return no(405, 'There is no such call.');
  // GitLab ends the keys of a fork otherwise than those of a protected branch, which it reads here if the config says so.
  for (const from of caches.reads)
    for (const name of [key, ...(from === caches.writes ? [] : [key.replace(/-non_protected$/, '-protected')])])
      if (await send(call, from, name)) return null;
  return no(404, 'There is no such object.');
}

async function finish({ store }: CacheCall, owner: string, { id }: StoredPart, isWhole: boolean): Promise<Answer> {
  if (isWhole && (await store.commit(owner, id))) return new Answer(200);
  await store.giveUp(owner, id);
  return no(400, 'The archive is not whole.');
}

const reserved = z.object({ key: z.string().min(1).max(512), version: z.string().max(512), cacheSize: z.int().positive() });
const committed = z.object({ size: z.int().positive() });
/** No key or version contains it. */
const between = '\n';

async function asActions(call: CacheCall): Promise<Answer | null> {
  const { request, sealed, caches, asked, store } = call;
  const path = asked.segments.join('/');
  const archive = /^_apis\/artifactcache\/artifacts\/(\d+)\/(.+)$/.exec(path);
  // The client shows no token for what it downloads.
  if (request.method === 'GET' && archive !== null) {
    const [from, key] = [caches.reads[Number(archive[1])], attempt(() => Buffer.from(archive[2] ?? '', 'base64url').toString())];
    return from !== undefined && key !== null && (await send(call, from, key)) ? null : no(404, 'There is no such cache.');
  }
  if (request.headers.authorization !== `Bearer ${sealed.token}`) return no(401, 'The token is not that of the job.');
  if (request.method === 'GET' && path === '_apis/artifactcache/cache') return findArchive(call);
  if (caches.writes === null) return no(403, 'This job may not write caches.');
  if (request.method === 'POST' && path === '_apis/artifactcache/caches') {
    const about = reserved.safeParse(await jsonIn(request)).data;
    if (about === undefined || `${about.key}${about.version}`.includes(between))
      return no(400, 'It needs a key, a version and a size.');
    const part = await store.begin(caches.writes, `${about.key}${between}${about.version}`, about.cacheSize, caches.limits);
    await part.handle.close();
    return new Answer(200, { cacheId: part.id });
  }
  const id = Number(/^_apis\/artifactcache\/caches\/(\d{1,15})$/.exec(path)?.[1]);
  if (request.method === 'PATCH' && id > 0) return patch(call, caches.writes, id);
  if (request.method === 'POST' && id > 0) {
    const handle = await store.resume(caches.writes, id);
    const size = (await handle?.stat())?.size;
    await handle?.close();
    if (size === undefined || committed.safeParse(await jsonIn(request)).data?.size !== size)
      return no(400, 'The archive is not whole.');
    // A cache of Actions never changes.
    return (await store.commit(caches.writes, id, true)) ? new Answer(200) : no(400, 'There is a cache with this key already.');
  }
  return no(404, 'There is no such call.');
}

/** A part of an archive. */
async function patch({ request, store }: CacheCall, owner: string, id: number): Promise<Answer> {
  const range = /^bytes (\d{1,15})-(\d{1,15})\/\*$/.exec(request.headers['content-range'] ?? '');
  const handle = await store.resume(owner, id);
  if (handle === null) return no(404, 'There is no such upload.');
  try {
    const [from, to] = [Number(range?.[1]), Number(range?.[2])];
    if (!(from <= to) || to >= (await handle.stat()).size) return no(400, 'The range is invalid.');
    return (await write(request, handle, from, to - from + 1)) ? new Answer(200) : no(400, 'The part is not whole.');
  } finally {
    await handle.close();
  }
}

/** As the cache server of Gitea's runner: the whole key first, then what begins with one of the keys, the newest first. */
async function findArchive({ caches, asked, store, sealed, request }: CacheCall): Promise<Answer> {
  const query = new URLSearchParams(asked.query);
  const end = `${between}${query.get('version') ?? ''}`;
  for (const [at, from] of caches.reads.entries())
    for (const key of (query.get('keys') ?? '').split(',').map((each) => each.trim())) {
      if (key === '') continue;
      const whole = `${key}${end}`;
      const one = (await store.has(from, whole)) ? whole : (await store.find(from, key)).find((each) => each.endsWith(end));
      if (one === undefined) continue;
      // Its root, and the sealed token.
      const above = (request.url ?? '').split('/').slice(0, 3).join('/');
      const archiveLocation = `${sealed.endpoint}${above}/_apis/artifactcache/artifacts/${at}/${Buffer.from(one).toString('base64url')}`;
      return new Answer(200, { result: 'hit', archiveLocation, cacheKey: one.slice(0, -end.length) });
    }
  return new Answer(204);
}

/** Whether there is such an archive, which is sent then. */
async function send({ response, store, request }: CacheCall, owner: string, key: string): Promise<boolean> {
  const found = await store.open(owner, key);
  if (found === null) return false;
  const { handle, size, wroteAt } = found;
  const [, from, to] = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? '') ?? [];
  const [start, end] = [Number(from ?? 0), Math.min(size - 1, to === undefined || to === '' ? size : Number(to))];
  const isPart = from !== undefined && start <= end;
  response.writeHead(isPart ? 206 : 200, {
    'content-type': 'application/octet-stream',
    'content-length': isPart ? end - start + 1 : size,
    'last-modified': wroteAt.toUTCString(),
    ...(isPart && { 'content-range': `bytes ${start}-${end}/${size}` }),
  });
  await pipeline(handle.createReadStream(isPart ? { start, end } : {}), response);
  return true;
}

/** Writes exactly so many bytes of the body. Whether there were so many. */
async function write(request: IncomingMessage, handle: StoredPart['handle'], from: number, bytes: number): Promise<boolean> {
  let done = 0;
  for await (const piece of request as AsyncIterable<Buffer>) {
    if (done + piece.length > bytes) return false;
    await handle.write(piece, 0, piece.length, from + done);
    done += piece.length;
  }
  return done === bytes;
}

/** @throws NoRoom for a body whose length is not said before */
function lengthOf({ headers }: IncomingMessage): number {
  const length = Number(headers['content-length'] ?? 0);
  if (length > 0) return length;
  throw new NoRoom('it is empty, or its length is unknown');
}

const longestCall = 16 * 1024;

async function jsonIn(request: IncomingMessage): Promise<unknown> {
  return jsonOf((await bytesOf(request, longestCall, () => new NoRoom('the call is too long'))).toString()) ?? null;
}
