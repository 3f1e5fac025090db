/** What people of the host may do, over real sockets: each test connects as another user of the kernel. */
import { once } from 'node:events';
import { chmodSync, chownSync, existsSync, lstatSync, mkdirSync, symlinkSync, unlinkSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { connect, createServer, type Socket } from 'node:net';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { bareRecipe } from '../../test/kit/recipe.ts';
import { logIn } from '../../test/support/browser-login.ts';
import { oneDevice } from '../../test/support/devices.ts';
import { createFakeManager, type FakeManager } from '../../test/support/fake-manager.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { createOwnQueue, type OwnQueue } from '../ci/own-queue/own-queue.ts';
import { longestSocketPath, peopleFolder, personSocket } from '../config/paths.ts';
import { People, type PeopleGroup } from '../config/people.ts';
import { type Call, type CallName, calls } from '../contract/calls.ts';
import { jobRequest } from '../contract/job.ts';
import { openStore, type Store } from '../store/store.ts';
import { type ApiServer, startApi } from './server.ts';

const [ada, bob, eve, out] = [10_001, 10_002, 10_003, 10_004];
const group = (name: string, more: Partial<PeopleGroup>): PeopleGroup => ({
  name,
  role: 'submit',
  pools: ['gpu'],
  volumes: [],
  images: [],
  logs: 'own',
  cards: null,
  cardsEach: null,
  weight: 1,
  ...more,
});

/** The host's groups, which tests change. */
let members: Record<string, string[]>;
let dir: Scratch;
let path: string;
let store: Store;
let queue: OwnQueue;
let people: People;
let manager: FakeManager;
let server: ApiServer;
let bugs: string[];
let files: Readable;
let listing: PromiseWithResolvers<[]>;

const groups = [group('lab', {}), group('guests', { role: 'look', pools: [] }), group('staff', { role: 'operate' })];

async function start(): Promise<void> {
  people = new People({ groups, halfLife: 86_400_000 }, async (names) => ({
    groups: new Map(names.flatMap((name) => (members[name] === undefined ? [] : [[name, { gid: 900, members: members[name] }]]))),
    users: Object.entries({ zed: 4_000_000_000, ada, bob, eve, out }).map(([name, uid]) => ({ name, uid, gid: uid })),
  }));
  await people.look();
  const pool = (name: string) => ({
    name,
    runtime: null,
    timeout: null,
    recipe: bareRecipe,
    devices: { ...oneDevice, count: 0 },
    standby: true,
  });
  queue = createOwnQueue({ store, pools: [pool('default'), pool('gpu')], people });
  manager = createFakeManager();
  const own = {
    submit: queue.submit.bind(queue),
    submitArray: queue.submitArray.bind(queue),
    verify: queue.verify.bind(queue),
    job: queue.job.bind(queue),
    arrayJobs: queue.arrayJobs.bind(queue),
    cancel: queue.cancel.bind(queue),
    cancelArray: queue.cancelArray.bind(queue),
    move: queue.move.bind(queue),
    settled: queue.settled.bind(queue),
    putWorkspace: queue.putWorkspace.bind(queue),
    artifacts: () => files,
    caches: () => listing.promise,
    checkShell: () => {},
    async *logs() {
      yield { stream: 'stdout' as const, bytes: Buffer.from('said') };
    },
  };
  server = await startApi({
    manager: { ...manager, ...own },
    people,
    socket: { path, access: 'root' },
    version: '1.0.0',
    onBug: (error, route) => void bugs.push(`${route}: ${error.message}`),
    web: { config: null, stateDir: store.dir, log: { info() {}, error() {} } },
  });
}

beforeEach(async () => {
  bugs = [];
  files = Readable.from(['files']);
  listing = Promise.withResolvers();
  members = { lab: ['ada', 'bob'], guests: ['eve'], staff: [] };
  dir = scratch();
  chmodSync(dir.path, 0o755);
  path = join(dir.path, 'd.sock');
  store = openStore(join(dir.path, 'state'));
  await start();
});

afterEach(async () => {
  people.close();
  await server.close();
  await queue.close();
  await manager.end();
  store.close();
  dir[Symbol.dispose]();
  expect(bugs).toEqual([]);
});

/** The kernel decides at this moment. */
function connectAs(uid: number, to = personSocket(path, uid)): Socket {
  process.seteuid?.(uid);
  try {
    return connect(to);
  } finally {
    process.seteuid?.(0);
  }
}

type Answered = {
  status: number;
  body: { id: string; code?: string; message?: string; person?: number; role?: string; user?: string };
};

async function ask(uid: number, method: string, target: string, body?: unknown, more: http.RequestOptions = {}): Promise<Answered> {
  const text = body === undefined ? undefined : JSON.stringify(body);
  const headers = { ...(text !== undefined && { 'content-type': 'application/json' }), ...more.headers };
  const request = http.request({ createConnection: () => connectAs(uid), method, path: target, ...more, headers });
  request.end(text);
  const [response] = (await once(request, 'response')) as [http.IncomingMessage];
  const got = (await buffer(response)).toString();
  const isJson = response.headers['content-type']?.includes('json');
  return { status: response.statusCode ?? 0, body: isJson ? JSON.parse(got) : { id: got } };
}

const run = (uid: number, more: object = {}) => ask(uid, 'POST', '/v1/jobs', { command: ['true'], pool: 'gpu', ...more });

describe('who a connection is from', () => {
  it('is what the kernel says: a user has his own socket, and no other', async () => {
    expect(await ask(ada, 'GET', '/v1/me')).toEqual({ status: 200, body: { role: 'submit', user: 'ada' } });
    expect((await ask(eve, 'GET', '/v1/me')).body).toEqual({ role: 'read', user: 'eve' });
    for (const to of [path, personSocket(path, bob), join(peopleFolder(path), '.new', `${bob}.sock`)]) {
      const socket = connectAs(ada, to);
      const [error] = await once(socket, 'error');
      expect(error.code).toBe('EACCES');
    }
    expect(lstatSync(personSocket(path, ada))).toMatchObject({ uid: ada });
    expect(lstatSync(personSocket(path, ada)).mode & 0o777).toBe(0o600);
  });

  it('is nothing that a request says', async () => {
    const forged = {
      headers: { 'x-remote-user': 'root', 'x-forwarded-user': 'bob', 'onejob-uid': '0', authorization: 'Bearer root' },
    };
    expect((await ask(ada, 'GET', '/v1/me?uid=0', undefined, forged)).body.user).toBe('ada');
    expect((await run(ada, { person: bob })).status).toBe(400);
    const { body } = await run(ada, { user: 'bob' });
    expect(body).toMatchObject({ person: ada, user: 'ada' });
  });

  it('is nobody for a user in no group', async () => {
    const [error] = await once(connectAs(out), 'error');
    expect(error.code).toBe('ENOENT');
  });
});

describe('rights end', () => {
  it('with the group that gave them, also for connections that are open', async () => {
    const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
    agent.createConnection = () => connectAs(ada);
    const { body } = await run(ada);
    const waiting = ask(ada, 'GET', `/v1/jobs/${body.id}/settled`).catch((error: Error) => error);
    expect((await ask(ada, 'GET', '/v1/me', undefined, { agent })).status).toBe(200);
    members = { guests: ['eve'] };
    await people.look();
    await waiting;
    await expect(ask(ada, 'GET', '/v1/me', undefined, { agent })).rejects.toThrow();
    agent.destroy();
    expect(existsSync(personSocket(path, ada))).toBe(false);
    expect((await ask(eve, 'GET', '/v1/me')).status).toBe(200);
  });

  it('with another role, for requests on a connection that is open', async () => {
    const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
    let made = 0;
    agent.createConnection = () => {
      made += 1;
      return connectAs(ada);
    };
    const submit = () => ask(ada, 'POST', '/v1/jobs', { command: ['true'], pool: 'gpu' }, { agent });
    expect((await submit()).status).toBe(201);
    members = { guests: ['ada'] };
    await people.look();
    expect(await submit()).toMatchObject({ status: 403, body: { code: 'E_API_ROLE' } });
    expect(made).toBe(1);
    agent.destroy();
  });

  it('with another role, for files that are on their way', async () => {
    members = { lab: ['bob'], staff: ['ada'] };
    await people.look();
    const { body: job } = await run(bob);
    files = new Readable({ read() {} });
    files.push('first');
    const reading = ask(ada, 'GET', `/v1/jobs/${job.id}/artifacts`).then(
      () => 'whole',
      () => 'broken',
    );
    await once(files, 'resume');
    members = { lab: ['ada', 'bob'] };
    await people.look();
    expect(await reading).toBe('broken');
    expect(files.destroyed).toBe(true);
  });

  it('with a daemon whose config has no people: what was left is removed', async () => {
    await server.close();
    expect(existsSync(peopleFolder(path))).toBe(false);
    // As after kill -9.
    mkdirSync(peopleFolder(path));
    const left = createServer().listen(personSocket(path, ada));
    await once(left, 'listening');
    chownSync(personSocket(path, ada), ada, 0);
    server = await startApi({ manager, socket: { path, access: 'group' }, version: '1.0.0' });
    expect(existsSync(peopleFolder(path))).toBe(false);
    left.close();
  });

  it('begin for all others where the path of one socket is too long', async () => {
    await server.close();
    const folder = join(dir.path, 'x'.repeat(longestSocketPath - personSocket(path, ada).length - 1));
    mkdirSync(folder);
    path = join(folder, 'd.sock');
    members = { lab: ['zed', 'ada'] };
    await start();
    expect(bugs.splice(0)).toEqual([expect.stringContaining('4000000000.sock')]);
    expect((await ask(ada, 'GET', '/v1/me')).status).toBe(200);
  });

  it('never begin in a folder that others can change', async () => {
    await server.close();
    chmodSync(dir.path, 0o777);
    await expect(start()).rejects.toMatchObject({ code: 'E_SOCKET_DENIED' });
    chmodSync(dir.path, 0o755);
    symlinkSync('/etc', peopleFolder(path));
    await expect(start()).rejects.toMatchObject({ code: 'E_SOCKET_DENIED' });
    unlinkSync(peopleFolder(path));
    await start();
  });

  it('never begin in a folder of somebody else', async () => {
    await server.close();
    mkdirSync(peopleFolder(path));
    chownSync(peopleFolder(path), ada, ada);
    await expect(start()).rejects.toMatchObject({ code: 'E_SOCKET_DENIED' });
    expect(existsSync(personSocket(path, ada))).toBe(false);
    chownSync(peopleFolder(path), 0, 0);
  });
});

describe('a job', () => {
  it('is cancelled, moved, read and entered by whom it belongs to only', async () => {
    const { body: job } = await run(bob);
    const asked = [
      ['POST', `/v1/jobs/${job.id}/cancel`],
      ['POST', `/v1/jobs/${job.id}/move`, { pool: 'gpu' }],
      ['GET', `/v1/jobs/${job.id}/artifacts`],
      ['GET', `/v1/logs?job=${job.id}`],
      ['POST', `/v1/jobs/${job.id}/unhold`],
    ] as const;
    for (const [method, target, body] of asked) {
      expect(await ask(ada, method, target, body), target).toMatchObject({ status: 403, body: { code: 'E_API_ROLE' } });
      expect((await ask(eve, method, target, body)).status, target).toBe(403);
    }
    const upgrade = { headers: { connection: 'Upgrade', upgrade: 'onejob-shell' } };
    expect((await ask(ada, 'POST', `/v1/jobs/${job.id}/shell`, undefined, upgrade)).status).toBe(403);
    expect((await ask(eve, 'POST', `/v1/jobs/${job.id}/shell`, undefined, upgrade)).status).toBe(403);
    expect((await ask(bob, 'GET', `/v1/logs?job=${job.id}`)).status).toBe(200);
    expect((await ask(ada, 'GET', `/v1/jobs/${job.id}`)).status).toBe(200);
    expect((await ask(bob, 'POST', `/v1/jobs/${job.id}/cancel`)).body).toMatchObject({ state: 'done' });
    // Nor once it has ended.
    expect((await ask(ada, 'GET', `/v1/logs?job=${job.id}`)).status).toBe(403);
  });

  it('of root is nobody’s', async () => {
    const job = queue.submit(jobRequest.parse({ command: ['true'], pool: 'gpu' }));
    expect((await ask(ada, 'POST', `/v1/jobs/${job.id}/cancel`)).status).toBe(403);
  });

  it('that nobody knows has no output, whatever is left of it', async () => {
    for (const [method, target] of [
      ['GET', '/v1/logs?job=0123456789ab'],
      ['POST', '/v1/jobs/0123456789ab/cancel'],
      ['GET', '/v1/jobs/0123456789ab/artifacts'],
    ] as const)
      expect(await ask(ada, method, target), target).toMatchObject({ status: 404, body: { code: 'E_JOB_UNKNOWN' } });
  });

  it('has output that is not read by agent or slot, nor what its agent logged', async () => {
    const { body } = await run(ada);
    for (const query of ['agent=a1', 'slot=gpu/1', 'slot=gpu/1&previous=true', `job=${body.id}&own=true`])
      expect((await ask(ada, 'GET', `/v1/logs?${query}`)).status, query).toBe(403);
  });

  it('does not take an id, nor a place in an array, of somebody else', async () => {
    const id = '0123456789ab';
    expect((await run(bob, { id })).status).toBe(201);
    expect((await run(ada, { id })).status).toBe(403);
    const array = (indices: number[]) => ({ job: { command: ['true'], pool: 'gpu', id: 'aaaaaaaaaaaa' }, indices });
    expect((await ask(bob, 'POST', '/v1/job-arrays', array([0, 1]))).status).toBe(201);
    for (const indices of [[0, 1], [7]]) expect((await ask(ada, 'POST', '/v1/job-arrays', array(indices))).status).toBe(403);
    expect((await ask(ada, 'POST', '/v1/job-arrays/aaaaaaaaaaaa/cancel')).status).toBe(403);
    expect((await ask(bob, 'POST', '/v1/job-arrays/aaaaaaaaaaaa/cancel')).status).toBe(200);
  });

  it('does not take, nor remove, files that somebody else has sent', async () => {
    const put = (uid: number) => ask(uid, 'PUT', '/v1/workspaces', undefined);
    const [theirs, own] = [(await put(bob)).body.id, (await put(ada)).body.id];
    expect(await run(ada, { workspace: theirs })).toMatchObject({ status: 404 });
    expect((await run(bob, { workspace: theirs })).status).toBe(201);
    expect((await run(ada, { workspace: own })).status).toBe(201);
    const rootOwn = await queue.putWorkspace(Readable.from(['x']), new AbortController().signal);
    expect((await run(ada, { workspace: rootOwn })).status).toBe(404);
    expect(existsSync(join(store.dir, 'workspaces', `${rootOwn}.tar`))).toBe(true);
  });

  it('has no pool, image, volume, priority or origin that its group does not have', async () => {
    mkdirSync(join(dir.path, 'data'));
    writeFileSync(join(dir.path, 'data', 'x'), '');
    const volume = { host: join(dir.path, 'data'), container: '/data', readOnly: true, variable: null };
    for (const more of [
      { pool: 'default' },
      { image: 'evil:1' },
      { priority: 1 },
      { attemptOf: { job: '0123456789ab', attempt: 1, array: null } },
      { volumes: [volume] },
      { volumes: [{ ...volume, host: '/' }] },
    ])
      expect((await run(ada, more)).status, JSON.stringify(more)).toBeGreaterThanOrEqual(400);
    expect((await run(ada, { priority: -5 })).status).toBe(201);
    // The pool that it may use is chosen, not the usual one.
    expect((await run(ada, { pool: null })).body).toMatchObject({ pool: 'gpu' });
    expect((await ask(ada, 'POST', '/v1/jobs/check', { command: ['true'], pool: 'default' })).status).toBe(403);
  });
});

describe('the daemon', () => {
  it('is neither stopped, paused, changed nor asked for secrets by people', async () => {
    const operators = Object.entries<Call>(calls).filter(([, { role, onSocket }]) => role === 'operator' && onSocket === undefined);
    expect(operators.length).toBeGreaterThan(20);
    for (const [name] of operators) {
      const [method = '', target = ''] = name.split(' ');
      for (const uid of [ada, eve])
        expect((await ask(uid, method, target.replaceAll(/:[a-z]+/g, 'x'), method === 'GET' ? undefined : {})).status, name).toBe(
          403,
        );
    }
  });

  it('makes few lists of all caches at once for somebody who may only look: each takes time and memory', async () => {
    const all = Array.from({ length: 5 }, () => ask(eve, 'GET', '/v1/caches'));
    expect(await Promise.race(all)).toMatchObject({ status: 503, body: { code: 'E_API_BUSY' } });
    listing.resolve([]);
    expect((await Promise.all(all)).map(({ status }) => status).toSorted()).toEqual([200, 200, 200, 200, 503]);
  });

  it('takes so many bodies of a person at once that they do not fill its memory', async () => {
    const post = () => {
      const headers = { 'content-type': 'application/json', 'content-length': 8 << 20 };
      const request = http.request({ createConnection: () => connectAs(ada), method: 'POST', path: '/v1/jobs', headers });
      request.on('error', () => {}).flushHeaders();
      return request;
    };
    const open = Array.from({ length: 9 }, post);
    const [response] = (await Promise.race(open.map((one) => once(one, 'response')))) as [http.IncomingMessage];
    expect(response.statusCode).toBe(503);
    for (const one of open) one.destroy();
    await expect.poll(async () => (await run(ada)).status).toBe(201);
  });

  it('is whose who may operate it', async () => {
    members = { staff: ['out'] };
    await people.look();
    await expect.poll(() => existsSync(personSocket(path, out)), { timeout: 20_000 }).toBe(true);
    expect((await ask(out, 'POST', '/v1/pause', { reason: 'r' })).status).toBe(204);
    expect((await ask(out, 'POST', '/v1/jobs', { command: ['true'], pool: 'default' })).body).toMatchObject({ person: out });
  });

  it('gives a browser what the person may, whatever the link is asked for, and no longer', async () => {
    expect((await ask(out, 'POST', '/v1/login-links', {}).catch(() => null))?.status).toBe(undefined);
    const { body } = await ask(ada, 'POST', '/v1/login-links', { role: 'operator', user: 'root' });
    const page = await logIn((body as unknown as { url: string }).url);
    const askHere = async (method: string, target: string, body?: string) =>
      fetch(`${page.base}${target}`, {
        method,
        headers: await page.headers(target, body === undefined ? { method } : { method, body }),
        ...(body !== undefined && { body }),
      });
    const status = async (...asked: Parameters<typeof askHere>) => (await askHere(...asked)).status;
    expect(await (await askHere('GET', '/v1/me')).json()).toEqual({ role: 'submit', user: 'ada' });
    const { body: theirs } = await run(bob);
    expect(await status('POST', `/v1/jobs/${theirs.id}/cancel`, '{}')).toBe(403);
    expect(await status('GET', `/v1/logs?job=${theirs.id}`)).toBe(403);
    expect(await status('POST', '/v1/pause', '{"reason":"r"}')).toBe(403);
    // A login does not renew itself.
    expect(await status('POST', '/v1/login-links', '{}')).toBe(403);
    members = { guests: ['eve'] };
    await people.look();
    expect(await status('GET', '/v1/status')).toBe(401);
  });
});

/** What each call needs: the role, and whose things it is about. A call that is not here does not compile. */
const needs: Record<CallName, string> = {
  'GET /v1/openapi.json': 'read',
  'GET /v1/status': 'read',
  'GET /metrics': 'read',
  'GET /v1/plan': 'read',
  'GET /v1/doctor': 'read',
  'POST /v1/pause': 'operator',
  'POST /v1/resume': 'operator',
  'POST /v1/drain': 'operator',
  'POST /v1/pools/:pool/pause': 'operator',
  'POST /v1/pools/:pool/resume': 'operator',
  'POST /v1/pools/:pool/drain': 'operator',
  'POST /v1/config/apply': 'operator',
  'POST /v1/down': 'operator',
  'GET /v1/forgotten': 'operator',
  'GET /v1/hold': 'operator on a socket read',
  'GET /healthz': 'anyone',
  'GET /v1/me': 'read',
  'POST /v1/login-links': 'operator on a socket read',
  'POST /v1/login': 'anyone',
  'GET /v1/challenge': 'anyone',
  'GET /v1/events': 'read',
  'POST /v1/jobs': 'submit',
  'POST /v1/jobs/check': 'submit',
  'POST /v1/job-arrays': 'submit',
  'GET /v1/job-arrays/:id': 'read',
  'POST /v1/job-arrays/:id/cancel': 'submit own array',
  'GET /v1/jobs': 'read',
  'GET /v1/history': 'read',
  'POST /v1/jobs/prune': 'operator',
  'GET /v1/caches': 'read',
  'POST /v1/caches/clear': 'operator',
  'GET /v1/jobs/:id': 'read',
  'GET /v1/jobs/:id/settled': 'read',
  'POST /v1/jobs/:id/cancel': 'submit own job',
  'POST /v1/jobs/:id/move': 'submit own job',
  'GET /v1/jobs/:id/artifacts': 'read own job',
  'POST /v1/jobs/:id/shell': 'submit own job',
  'POST /v1/jobs/:id/unhold': 'submit own job',
  'PUT /v1/workspaces': 'submit',
  'PUT /v1/sent-files': 'submit',
  'POST /v1/workspaces': 'submit',
  'GET /v1/logs': 'read own output',
  'GET /v1/devices': 'read',
  'GET /v1/devices/:device/use': 'read',
  'POST /v1/devices/:device/reserve': 'operator',
  'POST /v1/devices/:device/quarantine': 'operator',
  'POST /v1/devices/:device/return': 'operator',
  'POST /v1/devices/:device/clear': 'operator',
  'POST /v1/devices/:device/forget': 'operator',
  'GET /v1/proofs': 'read',
  'GET /v1/machines': 'read',
  'GET /v1/receipts': 'read',
  'POST /v1/machines/:host/up': 'operator',
  'POST /v1/machines/:host/down': 'operator',
  'GET /v1/secret-pins': 'operator',
  'POST /v1/secret-pins/:fingerprint/allow': 'operator',
  'POST /v1/secret-pins/:fingerprint/forget': 'operator',
  'GET /v1/images': 'read',
  'POST /v1/images/prune': 'operator',
  'POST /v1/images/build': 'operator',
  'POST /v1/images/refresh': 'operator',
};

it('each call says which role it needs, and whose things it is about', () => {
  const said = Object.entries<Call>(calls).map(([name, { role, own, onSocket }]) => {
    const more = [own === undefined ? '' : ` own ${own}`, onSocket === undefined ? '' : ` on a socket ${onSocket}`];
    return [name, [role, ...more].join('')];
  });
  expect(Object.fromEntries(said)).toEqual(needs);
});
