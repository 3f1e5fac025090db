/**
 * The programs in `examples/cloud-providers`, run as they are by the adapter and by `onejob cloud check-provider`, with a stand-in for
 * what they call. What the stand-ins answer is from public sources:
 *
 * Incus: see `test/support/incus-lab.ts`.
 * OpenStack: doc/api_samples/servers (v2.47, v2.69) and api-guide/source/down_cells.rst of openstack/nova,
 * api-ref/source/v3/samples/admin/auth-application-credential-response.json of openstack/keystone, and the words of a quota from
 * issue 2912 of gophercloud/gophercloud.
 */
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { runCli } from '../../src/cli.ts';
import { openCommand } from '../../src/clouds/command/cloud.ts';
import { systemClock as clock } from '../../src/system/system-clock.ts';
import { orderOf } from '../kit/azure-cloud.ts';
import { commandConfig } from '../kit/command-cloud.ts';
import { planOf } from '../kit/gcp.ts';
import { testContext } from '../support/cli-context.ts';
import { incusLab, incusProvider } from '../support/incus-lab.ts';
import { scratch } from '../support/scratch.ts';

const folder = scratch();
afterAll(() => folder[Symbol.dispose]());
const signal = new AbortController().signal;
const programs = join(import.meta.dirname, '../../examples/cloud-providers');
const everything = { places: [], everywhere: true };
const hasPython = spawnSync('python3', ['--version']).status === 0;

function opened(config: Partial<typeof commandConfig>, variables: Readonly<Record<string, string | undefined>>) {
  const parts = { clock, fetch, log: { error() {}, warn() {}, info() {} }, variables, version: '1' };
  return openCommand({ ...commandConfig, deathDate: 'manager-only', ...config }, parts);
}

const order = (cloud: ReturnType<typeof opened>) =>
  orderOf(cloud, Math.floor(Date.now() / 1000), {
    offer: { type: 'gpu-large', spot: false, zone: null },
    userData: '#cloud-config\n# onejob-join-token\n',
  });

function lab() {
  const { home, path } = incusLab(folder.path);
  const variables = { PATH: path, HOME: home };
  return { home, variables, cloud: opened({ program: incusProvider, options: { remote: 'lab' } }, variables) };
}

describe.skipIf(!hasPython)('incus-provider', { timeout: 120_000 }, () => {
  test('makes, shows and removes a machine, and keeps its secret off command lines', async () => {
    const { cloud, home } = lab();
    const wanted = order(cloud);
    const made = await cloud.create(wanted, signal);
    expect(await cloud.create(wanted, signal)).toEqual(made);
    const { owner, run, host, born, expires } = wanted;
    const thing = { kind: 'machine', id: run, place: 'lab', run, host, born, expires, state: 'running', offer: null };
    expect(await cloud.list(owner, everything, signal)).toEqual({ things: [thing], unknown: [] });
    expect((await cloud.list('lab-2', everything, signal)).things).toEqual([]);
    expect(await cloud.console(made, signal)).toContain('hello');
    const { config } = JSON.parse(readFileSync(join(home, `vm-${run}`), 'utf8'));
    expect(config['cloud-init.user-data']).toBe(wanted.userData);
    await cloud.destroy({ kind: 'machine', ...made }, signal);
    await cloud.destroy({ kind: 'machine', ...made }, signal);
    expect(existsSync(join(home, `vm-${run}`))).toBe(false);
    const calls = readFileSync(join(home, 'calls'), 'utf8');
    expect(calls).not.toContain('onejob-join-token');
    expect(calls.match(/"launch"/g)).toHaveLength(1);
    expect(calls).toContain('"--device","root,size=128GiB"');
  });

  test('what is on a member that is away is unknown', async () => {
    const { cloud, home } = lab();
    const name = 'onejob-00000000000000aa';
    const away = { name, status: 'Error', status_code: 112, config: null, location: 'node3' };
    writeFileSync(join(home, `vm-${name}`), JSON.stringify(away));
    expect(await cloud.list('lab-1', everything, signal)).toEqual({ things: [], unknown: [`${name} on node3 (Error)`] });
  });

  test('what fails leaves nothing behind, and says so', async () => {
    const { cloud, home } = lab();
    writeFileSync(join(home, 'full'), '');
    const full = { code: 'E_CLOUD_UNREACHABLE', isAmbiguous: false, message: expect.stringContaining('it is in use') };
    await expect(cloud.create(order(cloud), signal)).rejects.toMatchObject(full);
    const strange = { ...order(cloud), image: { from: 'images:nothing', has: 'nothing' } } as const;
    await expect(cloud.create(strange, signal)).rejects.toMatchObject({ code: 'E_CLOUD_REQUEST', isAmbiguous: false });
    const unknown = { ...order(cloud), offer: { type: '--help', spot: false, zone: null } };
    await expect(cloud.create(unknown, signal)).rejects.toMatchObject({ code: 'E_CLOUD_REQUEST' });
    expect((await cloud.list('lab-1', everything, signal)).things).toEqual([]);
    writeFileSync(join(home, 'away'), '');
    await expect(cloud.list('lab-1', everything, signal)).rejects.toMatchObject({ code: 'E_CLOUD_UNREACHABLE', retry: true });
  });

  test('a remote that goes away while it makes a machine leaves open whether there is one', async () => {
    const { cloud, home } = lab();
    writeFileSync(join(home, 'lost'), '');
    await expect(cloud.create(order(cloud), signal)).rejects.toMatchObject({ code: 'E_CLOUD_ANSWER', isAmbiguous: true });
  });

  test('passes "onejob cloud check-provider", which says what it tried', async () => {
    const { home, variables } = lab();
    const args = ['cloud', 'check-provider', incusProvider, '--manager-only', '--option', 'remote=lab'];
    const typed = testContext([...args, '--json'], home, { variables });
    expect(await runCli(typed.context), typed.stdout()).toBe(0);
    const steps = typed
      .stdout()
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line));
    expect(steps).toHaveLength(9);
    expect(steps[0]).toMatchObject({
      program: incusProvider,
      step: 'a verb that does not exist',
      result: 'ok',
      evidence: 'Expected exit code 64 and no output; that came.',
    });
    expect(readFileSync(join(home, 'calls'), 'utf8')).not.toContain('launch');
    const wrong = testContext(['cloud', 'check-provider', '/bin/cat'], home, { variables });
    expect(await runCli(wrong.context)).toBe(1);
    expect(wrong.stdout()).toMatch(/✗ a verb that does not exist: Expected exit code 64 and no output; got it exited with 1\./);
    for (const usage of [['--create'], ['--option', 'x']]) {
      const mistyped = testContext(['cloud', 'check-provider', '/bin/cat', ...usage], home, { variables });
      expect(await runCli(mistyped.context)).toBe(2);
    }
  });
});

interface Server {
  readonly id: string;
  readonly name: string;
  readonly metadata: Record<string, string>;
  status: string;
  fault?: { readonly code: number; readonly message: string };
}

/** Keystone and Nova, as far as the program asks them. */
async function openstack() {
  const servers = new Map<string, Server>();
  const bodies: string[] = [];
  const mood = { quota: false, noHost: false, cellDown: false, away: 0 };
  const bare = (): Server => ({ id: 'b6b0410f-b65f-4473-855e-5d82a71759e0', status: 'UNKNOWN' }) as Server;
  const listener = createServer(async (request, response) => {
    const body = Buffer.concat(await request.toArray()).toString();
    bodies.push(body);
    const say = (status: number, answer: unknown, headers = {}): void => {
      response
        .writeHead(status, { 'Content-Type': 'application/json', ...headers })
        .end(answer === null ? '' : JSON.stringify(answer));
    };
    const { pathname, searchParams } = new URL(request.url ?? '', url);
    const [, id = ''] = /^\/compute\/v2\.1\/servers\/([^/]+)/.exec(pathname) ?? [];
    if (pathname === '/identity/v3/auth/tokens') {
      const isKnown = body.includes('rEaqvJka48mpv');
      const compute = { region_id: 'RegionOne', region: 'RegionOne', interface: 'public', url: `${url}/compute/v2.1`, id: 'a7' };
      const catalog = [{ endpoints: [compute, { ...compute, interface: 'admin' }], type: 'compute', id: '40', name: 'nova' }];
      if (isKnown) return say(201, { token: { methods: ['application_credential'], catalog } }, { 'X-Subject-Token': 'a-token' });
      return say(401, {
        error: { code: 401, message: 'The request you have made requires authentication.', title: 'Unauthorized' },
      });
    }
    if (request.headers['x-auth-token'] !== 'a-token' || request.headers['openstack-api-version'] !== 'compute 2.69')
      return say(401, {});
    if (pathname.endsWith('/flavors')) return say(200, { flavors: [{ id: '7', name: 'gpu-large', links: [] }] });
    if (pathname.endsWith('/servers/detail')) {
      // One on each page.
      const all = [...servers.values()];
      const from = all.findIndex((one) => one.id === searchParams.get('marker')) + 1;
      const link = { href: `${url}/compute/v2.1/servers/detail?marker=${all[from]?.id}`, rel: 'next' };
      return say(200, {
        servers: [...(mood.cellDown && from === 0 ? [bare()] : []), ...all.slice(from, from + 1)],
        ...(from + 1 < all.length && { servers_links: [link] }),
      });
    }
    if (pathname.endsWith('/servers') && request.method === 'POST') {
      if (mood.quota)
        return say(403, {
          forbidden: { code: 403, message: 'Quota exceeded for instances: Requested 1, but already used 10 of 10 instances' },
        });
      const { server } = JSON.parse(body);
      const made = { ...server, id: `f5dc173b-6804-445a-a6d8-00000000000${servers.size}`, status: 'ACTIVE' };
      if (mood.noHost)
        Object.assign(made, {
          status: 'ERROR',
          fault: { code: 500, message: 'No valid host was found. There are not enough hosts available.' },
        });
      servers.set(made.id, made);
      return say(202, { server: { id: made.id, 'OS-DCF:diskConfig': 'AUTO', adminPass: '6NpUwoz2QDRN', links: [] } });
    }
    if (mood.away > 0) return say(mood.away, {});
    if (!servers.has(id)) return say(404, { itemNotFound: { code: 404, message: `Instance ${id} could not be found.` } });
    if (pathname.endsWith('/action')) return say(200, { output: 'FAKE CONSOLE OUTPUT\nANOTHER\nLAST LINE' });
    if (request.method === 'DELETE') return servers.delete(id) && say(204, null);
    return say(200, { server: servers.get(id) });
  }).listen(0, '127.0.0.1');
  await once(listener, 'listening');
  const url = `http://127.0.0.1:${(listener.address() as AddressInfo).port}`;
  const secret = join(folder.path, 'openstack.secret');
  writeFileSync(secret, 'rEaqvJka48mpv\n', { mode: 0o600 });
  const options = { auth_url: `${url}/identity/v3`, credential: '423f19a4', network: 'net-1', image: 'image-1' };
  const secrets = { credential: { kind: 'file', path: secret, expires: null } } as const;
  const variables = { PATH: process.env.PATH, HOME: process.env.HOME };
  return {
    servers,
    bodies,
    mood,
    secret,
    options,
    variables,
    cloud: opened({ program: join(programs, 'openstack-provider'), options, secrets }, variables),
    async [Symbol.asyncDispose]() {
      listener.closeAllConnections();
      listener.close();
      await once(listener, 'close');
    },
  };
}

describe.skipIf(!hasPython)('openstack-provider', { timeout: 120_000 }, () => {
  test('makes, shows and removes a machine', async () => {
    await using stack = await openstack();
    const { cloud, servers, bodies } = stack;
    const wanted = order(cloud);
    const { owner, run, host, born, expires } = wanted;
    servers.set('x', { id: 'x', name: 'web', metadata: {}, status: 'ACTIVE' });
    const made = await cloud.create(wanted, signal);
    expect(await cloud.create(wanted, signal)).toEqual(made);
    const { server } = JSON.parse(bodies.find((body) => body.includes('flavorRef')) ?? '{}');
    expect(server).toMatchObject({ name: run, flavorRef: '7', imageRef: 'image-1', networks: [{ uuid: 'net-1' }] });
    expect(Buffer.from(server.user_data, 'base64').toString()).toBe(wanted.userData);
    const thing = { kind: 'machine', id: made.id, place: 'lab', run, host, born, expires, state: 'running', offer: null };
    expect(await cloud.list(owner, everything, signal)).toEqual({ things: [thing], unknown: [] });
    expect(await cloud.console(made, signal)).toContain('LAST LINE');
    await cloud.destroy({ kind: 'machine', ...made }, signal);
    await cloud.destroy({ kind: 'machine', ...made }, signal);
    expect([...servers.keys()]).toEqual(['x']);
  });

  test('a server in a cell that is down is unknown', async () => {
    await using stack = await openstack();
    stack.mood.cellDown = true;
    const unknown = ['server b6b0410f-b65f-4473-855e-5d82a71759e0 (UNKNOWN)'];
    expect(await stack.cloud.list('lab-1', everything, signal)).toEqual({ things: [], unknown });
  });

  test.each([401, 404, 429, 503])(
    'a Nova that answers with %i once it has a server leaves open whether there is one',
    async (away) => {
      await using stack = await openstack();
      stack.mood.away = away;
      const unknown = { code: 'E_CLOUD_ANSWER', isAmbiguous: true };
      await expect(stack.cloud.create(order(stack.cloud), signal)).rejects.toMatchObject(unknown);
      expect(stack.servers.size).toBe(1);
    },
  );

  test('a quota, a lack of hosts, a wrong credential and an unknown flavor are told apart', async () => {
    await using stack = await openstack();
    const { cloud, mood, servers, secret } = stack;
    mood.quota = true;
    const quota = { code: 'E_CLOUD_QUOTA', isAmbiguous: false, message: expect.stringContaining('already used 10 of 10') };
    await expect(cloud.create(order(cloud), signal)).rejects.toMatchObject(quota);
    Object.assign(mood, { quota: false, noHost: true });
    await expect(cloud.create(order(cloud), signal)).rejects.toMatchObject({ code: 'E_CLOUD_CAPACITY', isAmbiguous: false });
    expect(servers.size).toBe(0);
    const plan = { ...planOf('cpu', 'never'), image: cloud.usualImage };
    expect((await cloud.preflight(plan, signal))[0]).toMatchObject({ level: 'error', message: 'There is no flavor cpu.' });
    writeFileSync(secret, 'another secret');
    const denied = { code: 'E_CLOUD_DENIED', message: expect.not.stringContaining('another secret') };
    await expect(cloud.list('lab-1', everything, signal)).rejects.toMatchObject(denied);
  });

  test('passes "onejob cloud check-provider"', async () => {
    await using stack = await openstack();
    const options = Object.entries(stack.options).flatMap(([key, value]) => ['--option', `${key}=${value}`]);
    const program = join(programs, 'openstack-provider');
    const args = ['cloud', 'check-provider', program, '--manager-only', ...options, '--secret', `credential=${stack.secret}`];
    const typed = testContext(args, folder.path, { variables: stack.variables });
    expect(await runCli(typed.context), typed.stdout()).toBe(0);
    expect(stack.servers.size).toBe(0);
  });
});
