/** Removing networks of an Engine that keeps removed endpoints, as real ones do now and then, but never when a test needs it. */
import { expect, test } from 'vitest';
import { anOwner } from '../../../test/kit/docker-runtime.ts';
import { fakeEngine } from '../../../test/kit/fake-engine.ts';
import type { Firewall } from './firewall.ts';
import { Networks } from './networks.ts';

const never = new AbortController().signal;

/** One network of ours, with `ends` on it by container, of which `there` are; `miscounts`: nothing on it is one too many. */
async function over(ends: Readonly<Record<string, string>>, { there = [] as string[], miscounts = false } = {}) {
  const left = new Map(Object.entries(ends));
  const asked: string[] = [];
  let isThere = true;
  const network = () => ({
    Id: 'n1',
    Name: 'onejob-me',
    Labels: { 'onejob.owner': 'me' },
    Containers: Object.fromEntries([...left].map(([id, Name]) => [id, { Name }])),
  });
  const fake = fakeEngine('networks', async (path, request, reply) => {
    let text = '';
    for await (const part of request) text += part;
    const call = `${request.method} ${path}`;
    if (request.method !== 'GET') asked.push(`${call}${text}`);
    const no = (status: number) => reply.writeHead(status).end('{"message":"no"}');
    if (call === 'GET /networks') return reply.end(JSON.stringify(isThere ? [{ ...network(), Containers: {} }] : []));
    if (call === 'GET /networks/n1') return isThere ? reply.end(JSON.stringify(network())) : no(404);
    if (call === 'POST /networks/n1/disconnect') {
      const { Container } = JSON.parse(text) as { Container: string };
      for (const [id, name] of left) if (name === Container) left.delete(id);
      return reply.end();
    }
    if (call === 'DELETE /networks/n1') {
      if (left.size > 0 || miscounts) return no(403);
      isThere = false;
      return reply.writeHead(204).end();
    }
    const container = there.find((id) => path === `/containers/${id}/json`);
    if (container === undefined) return no(404);
    const State = { Status: 'running', Running: true, ExitCode: 0 };
    return reply.end(JSON.stringify({ Id: container, Name: '/c', Image: 'sha256:i', State, Config: { User: '' } }));
  });
  const engine = await fake.connect();
  let rules = true;
  const firewall: Firewall = {
    bridge: 'oj-me',
    obstacle: async () => null,
    guard: async () => {},
    open: async () => {},
    hasBridge: async () => true,
    remove: async () => {
      rules = false;
    },
  };
  return {
    networks: new Networks(engine, 'me', firewall),
    asked,
    get isThere() {
      return isThere;
    },
    get rules() {
      return rules;
    },
    [Symbol.asyncDispose]: fake.stop,
  };
}

test('an unused network is removed at once', async () => {
  await using here = await over({});
  await here.networks.sweep(never);
  expect(here.asked).toEqual(['DELETE /networks/n1']);
});

test('endpoints of removed containers are disconnected by name', async () => {
  await using here = await over({ 'ep-1': 'onejob-a', c9: 'onejob-b' });
  await here.networks.sweep(never);
  const off = (name: string) => `POST /networks/n1/disconnect{"Container":"${name}","Force":true}`;
  expect(here.asked).toEqual(['DELETE /networks/n1', off('onejob-a'), off('onejob-b'), 'DELETE /networks/n1']);
  expect(here.isThere).toBe(false);
});

test('a network with a foreign container stays', async () => {
  await using here = await over({ theirs: 'db', 'ep-1': 'onejob-a' }, { there: ['theirs'] });
  await here.networks.sweep(never);
  expect(here.asked.filter((one) => one.includes('db'))).toEqual([]);
  expect(here.isThere).toBe(true);
});

test('a network that the Engine keeps for nothing is reported, after its rules were removed', async () => {
  await using here = await over({}, { miscounts: true });
  await expect(here.networks.sweep(never)).rejects.toMatchObject({
    code: 'E_ENGINE_FAILED',
    message: expect.stringContaining('Cannot remove network "onejob-me"'),
    hint: expect.stringContaining('docker network rm onejob-me'),
  });
  expect(here.rules).toBe(false);
});

test.each([
  ['an Engine still lists', 404, true],
  ['is there', 200, false],
])('with a container that %s: whether they are swept', async (_, inspected, isSwept) => {
  const asked: string[] = [];
  const Labels: Record<string, string> = {};
  await using fake = fakeEngine('sweep', (path, { method }, reply) => {
    asked.push(`${method} ${path}`);
    const answers: Readonly<Record<string, object>> = {
      '/containers/json': [{ Id: 'c1', State: 'running', Labels }],
      '/containers/c1/json': {
        Id: 'c1',
        Name: '/c',
        Image: 'i',
        State: { Status: 'running', Running: true, ExitCode: 0 },
        Config: {},
      },
      '/volumes': { Volumes: [] },
      '/networks': [{ Id: 'n1', Name: 'n', Labels }],
    };
    const answer = path === '/containers/c1/json' && inspected !== 200 ? undefined : answers[path];
    if (method === 'DELETE') return reply.writeHead(204).end();
    return answer === undefined ? reply.writeHead(404).end('{"message":"no"}') : reply.end(JSON.stringify(answer));
  });
  await fake.start();
  const { owner, make } = anOwner(fake.socket);
  Labels['onejob.owner'] = owner;
  const runtime = await make();
  await runtime.sweep(never);
  runtime.close();
  expect(asked.includes('DELETE /networks/n1')).toBe(isSwept);
});

/** An Engine with the networks that it is asked for. `inUse`: it removes none. */
async function making(mtu: number, there: readonly object[] = [], inUse = false) {
  const Labels = { 'onejob.owner': 'me' };
  const networks = there.map((one, at) => ({ Id: `n${at}`, Created: `${at}`, Name: 'onejob-me', Labels, ...one }));
  await using fake = fakeEngine('making', async (_, request, reply) => {
    let text = '';
    for await (const part of request) text += part;
    if (request.method === 'DELETE') {
      if (!inUse) networks.splice(0, 1);
      return reply.writeHead(inUse ? 403 : 204).end(inUse ? '{"message":"in use"}' : undefined);
    }
    if (request.method === 'GET') return reply.end(JSON.stringify(networks));
    const { Name, Options } = JSON.parse(text) as { Name: string; Options: object };
    networks.push({ Id: `made${networks.length}`, Created: '9', Name, Labels, Options } as never);
    return reply.writeHead(201).end('{}');
  });
  const engine = await fake.connect();
  const firewall = { bridge: 'oj-me' } as Firewall;
  const id = await new Networks(engine, 'me', firewall, () => ({ name: 'eth0', mtu })).resolve('default');
  return networks.find(({ Id }) => Id === id) as { Options?: Record<string, string> } | undefined;
}

const mtu = 'com.docker.network.driver.mtu';

test('a network has at most the MTU of the uplink, also one that was there before', async () => {
  expect((await making(1_400))?.Options).toMatchObject({ [mtu]: '1400' });
  expect((await making(1_500))?.Options).not.toHaveProperty([mtu]);
  expect((await making(1_400, [{ Options: {} }]))?.Options).toMatchObject({ [mtu]: '1400' });
  expect((await making(1_500, [{ Options: { [mtu]: '1400' } }]))?.Options).toEqual({ [mtu]: '1400' });
  // Jobs are on it.
  expect((await making(1_400, [{ Options: { own: 'x' } }], true))?.Options).toEqual({ own: 'x' });
});
