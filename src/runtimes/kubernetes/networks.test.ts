/** Networks that a policy keeps, on an API whose pods reach each other as a test says. */
import { expect, test } from 'vitest';
import { type Call, channel, fakeKubernetes, success, toldClock } from '../../../test/kit/fake-kubernetes.ts';
import { specOf } from '../../../test/kit/faked-cluster.ts';
import { KubeClient } from './client.ts';
import { GuardedNetworks } from './networks.ts';

const never = new AbortController().signal;
const failed = channel(3, {
  status: 'Failure',
  reason: 'NonZeroExitCode',
  details: { causes: [{ reason: 'ExitCode', message: '1' }] },
});

interface Way {
  /** Whether a pod that a policy selects reaches none and is reached by none, at the nth look at it. */
  readonly keeps?: (look: number) => boolean;
  /** Whether pods that no policy selects reach each other. */
  readonly reaches?: boolean;
  /** Of the config. */
  readonly address?: string;
}

async function cluster({ keeps = () => true, reaches = true, address = '10.0.0.1' }: Way = {}) {
  const api = await fakeKubernetes();
  const clock = toldClock();
  const client = new KubeClient(api.access, clock);
  const make = () => new GuardedNetworks({ client, clock, owner: 'me', config: { name: 'cluster', address }, avoided: () => [] });
  let looks = 0;
  // A node that runs at once what is created.
  api.always('create', ({ body, reply }) => {
    const status = {
      phase: 'Running',
      podIP: `10.1.0.${api.count('create')}`,
      containerStatuses: [{ name: 'job', state: { running: {} } }],
    };
    const metadata = { ...body.metadata, uid: `uid-${body.metadata.name}` };
    api.put({ ...body, metadata, spec: { ...body.spec, nodeName: 'k1' }, status });
    reply.writeHead(201).end(JSON.stringify(body));
  });
  const isGuarded = (name: string) => api.pods.get(name)?.metadata.labels['onejob/network'] !== 'probe';
  const connects = ({ pod, url }: Call): boolean => {
    const [, ip] = /^set -- (\S+)/.exec(url.searchParams.getAll('command').at(-1) ?? '') ?? [];
    const to = [...api.pods.values()].find(({ status }) => status.podIP === ip);
    if (!isGuarded(pod) && !isGuarded(to?.metadata.name)) return reaches;
    looks += 1;
    return !keeps(looks);
  };
  api.always('exec', (call) => {
    const answer = connects(call) ? success : failed;
    void call.open().then((socket) => socket.send(answer, () => socket.close()));
  });
  // Nobody waits for long here.
  void (async () => {
    for (;;) await clock.pass(500);
  })();
  const said: string[] = [];
  return {
    api,
    clock,
    said,
    make,
    networks: make(),
    /** How long an agent on this network must stay at its gate. */
    admit: (of: GuardedNetworks, network: string, image = 'debian:12') => {
      const spec = specOf('a1b2c3');
      return of.admit({ ...spec, recipe: { ...spec.recipe, network, image } }, (line) => said.push(line), never);
    },
    probes: () => [...api.pods.values()].filter(({ metadata }) => 'onejob/probe' in metadata.labels).length,
    async [Symbol.asyncDispose]() {
      client.close();
      await api[Symbol.asyncDispose]();
    },
  };
}

test('nothing is tried for the network of the cluster', async () => {
  await using here = await cluster();
  expect(await here.admit(here.networks, 'default')).toBe(0);
  expect(here.api.calls).toEqual([]);
});

test('a policy is tried once for all that ask, and its pods go', async () => {
  await using here = await cluster();
  const { networks } = here;
  expect(await Promise.all([here.admit(networks, 'internet'), here.admit(networks, 'internet')])).toEqual([1_000, 1_000]);
  expect(await here.admit(networks, 'internet', 'other:1')).toBe(1_000);
  expect([here.api.count('create'), here.probes()]).toEqual([3, 0]);
  expect(here.said).toContain('cluster: tries whether the cluster keeps network internet');
  expect(networks.proofs).toEqual([{ network: 'internet', failure: null }]);
  expect(here.api.policies.get('onejob-me-internet')).toMatchObject({
    kind: 'NetworkPolicy',
    spec: { policyTypes: ['Ingress', 'Egress'] },
  });
});

test('is tried again after a day', async () => {
  await using here = await cluster();
  await here.admit(here.networks, 'none');
  here.clock.advance(24 * 60 * 60_000);
  await here.admit(here.networks, 'none');
  expect(here.api.count('create')).toBe(6);
});

test('agents stay at their gate for longer than it took to take a pod up', async () => {
  await using here = await cluster({ keeps: (look) => look > 4 });
  expect(await here.admit(here.networks, 'none')).toBe(2_000);
});

test('a cluster that does not keep it is refused, and for a minute not asked again', async () => {
  await using here = await cluster({ keeps: () => false });
  const refused = {
    code: 'E_NETWORK_UNGUARDED',
    message:
      'Cannot keep jobs on network "none" from the cluster and private networks: the cluster does not keep policy onejob-me-none: a pod that it selects reached another one, on node k1.',
  };
  await expect(here.admit(here.networks, 'none')).rejects.toMatchObject(refused);
  await expect(here.admit(here.networks, 'none')).rejects.toMatchObject(refused);
  expect([here.api.count('create'), here.probes()]).toEqual([3, 0]);
  expect(here.networks.proofs).toMatchObject([{ network: 'none', failure: refused }]);
  here.clock.advance(60_000);
  await expect(here.admit(here.networks, 'none')).rejects.toMatchObject(refused);
  expect(here.api.count('create')).toBe(6);
});

test('nothing can be tried where pods do not reach each other', async () => {
  await using here = await cluster({ reaches: false });
  await expect(here.admit(here.networks, 'none')).rejects.toThrow(
    'two pods on node k1 that no policy of onejob keeps apart do not reach each other, so nothing can be tried.',
  );
  expect(here.probes()).toBe(0);
});

test.each([
  [
    'ended',
    { terminated: { exitCode: 93 } },
    'image "debian:12" has neither perl nor python3 nor nc, with which that could be tried.',
  ],
  ['cannot begin', { terminated: { exitCode: 128, reason: 'StartError', message: 'no sh' } }, 'Cannot start a probe pod: no sh.'],
  ['is killed', { terminated: { exitCode: 137 } }, 'Cannot try whether the cluster keeps network policies: a probe pod has ended.'],
])('a probe pod that %s', async (_, state, words) => {
  await using here = await cluster();
  here.api.always('create', ({ body, reply }) => {
    const status = { phase: 'Failed', containerStatuses: [{ name: 'job', state }] };
    here.api.put({ ...body, metadata: { ...body.metadata, uid: 'u' }, status });
    reply.writeHead(201).end('{}');
  });
  await expect(here.admit(here.networks, 'none')).rejects.toThrow(words);
  expect(here.probes()).toBe(0);
});

test('a door of ours needs no other try; what somebody else changes does', async () => {
  await using here = await cluster();
  const { networks, api } = here;
  await here.admit(networks, 'internet');
  expect(await Promise.all([7443, 7444].map((port) => networks.hostAddress('internet', port, never)))).toEqual([
    '10.0.0.1',
    '10.0.0.1',
  ]);
  const [, , ...doors] = api.policies.get('onejob-me-internet').spec.egress;
  expect(doors.map(({ ports }: { ports: object[] }) => ports)).toEqual([
    [{ protocol: 'TCP', port: 7443 }],
    [{ protocol: 'TCP', port: 7444 }],
  ]);
  await here.admit(networks, 'internet');
  expect(api.count('create')).toBe(3);
  const { metadata } = api.policies.get('onejob-me-internet');
  api.policies.set('onejob-me-internet', { metadata: { ...metadata, generation: 9 }, spec: { egress: [{}] } });
  await here.admit(networks, 'internet');
  expect([api.count('create'), api.policies.get('onejob-me-internet').spec.egress.length]).toEqual([6, 4]);
});

test('the address of a Service adds no door to the policy: another policy allows the pods behind it', async () => {
  await using here = await cluster({ address: 'onejob:7443' });
  expect(await here.networks.hostAddress('internet', 812, never)).toBe('onejob:7443');
  expect(here.api.policies.get('onejob-me-internet').spec.egress).toHaveLength(2);
});

test('a policy that somebody removes comes back with its doors, and another onejob keeps them', async () => {
  await using here = await cluster();
  const { networks, api } = here;
  await here.admit(networks, 'internet');
  await networks.hostAddress('internet', 7443, never);
  const { spec } = api.policies.get('onejob-me-internet');
  api.policies.clear();
  await networks.guard(never);
  expect(api.policies.get('onejob-me-internet').spec).toEqual(spec);
  await here.admit(here.make(), 'internet');
  expect(api.policies.get('onejob-me-internet')).toMatchObject({ spec, metadata: { generation: 1 } });
});

test('a policy that somebody removed while onejob was away comes back, if an agent is on its network', async () => {
  await using here = await cluster();
  const labels = { 'onejob/owner': 'me', 'onejob/agent': 'a9', 'onejob/network': 'none' };
  here.api.put({ metadata: { name: 'oj-a9', uid: 'u2', labels } });
  await here.networks.guard(never);
  expect([...here.api.policies.keys()]).toEqual(['onejob-me-none']);
});

test('no door leads from the network none', async () => {
  await using here = await cluster();
  await expect(here.networks.hostAddress('none', 7443, never)).rejects.toMatchObject({ code: 'E_NO_DOOR' });
  expect(await here.networks.hostAddress('default', 7443, never)).toBe('10.0.0.1');
  expect(here.api.calls).toEqual([]);
});

test('a sweep removes probes that were left, and the policies that no agent uses', async () => {
  await using here = await cluster();
  const { networks, api } = here;
  const label = (labels: object) => ({ 'onejob/owner': 'me', ...labels });
  await here.admit(networks, 'internet');
  await here.admit(networks, 'none');
  api.put({ metadata: { name: 'oj-probe-1-one', uid: 'u1', labels: label({ 'onejob/probe': 'probe-1-one' }) } });
  api.put({ metadata: { name: 'oj-a9', uid: 'u2', labels: label({ 'onejob/agent': 'a9', 'onejob/network': 'none' }) } });
  await networks.sweep(never);
  expect([[...api.pods.keys()], [...api.policies.keys()]]).toEqual([['oj-a9'], ['onejob-me-none']]);
  expect(networks.proofs).toEqual([{ network: 'none', failure: null }]);
});

test('what is known is guarded: probes that a killed onejob left go, and nothing fails where the API is away', async () => {
  await using here = await cluster();
  const { networks, api } = here;
  api.put({ metadata: { name: 'oj-probe-1-one', uid: 'u1', labels: { 'onejob/owner': 'me', 'onejob/probe': 'probe-1-one' } } });
  api.answer('list', { status: 500 });
  await networks.guard(never);
  expect(here.probes()).toBe(1);
  await networks.guard(never);
  expect(here.probes()).toBe(0);
});
