/** A pool whose slots are on machines in a cloud: this host only counts its jobs, and takes none. */
import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';
import { afterEach, expect, it } from 'vitest';
import { patient } from '../../../test/kit/azure.ts';
import { type HandClock, handClock } from '../../../test/kit/core.ts';
import { memoryGitHub } from '../../../test/kit/github.ts';
import { contextOf, githubService, hookSecret, jitIn } from '../../../test/kit/github-service.ts';
import type { CiEvent } from '../../ports/ci-service.ts';

const elsewhere = { host: 'burst', pool: 'gpu' };
const away = { name: 'burst.gpu', agents: 0, elsewhere } as const;
const slots = { poolOf: () => null, sizeOf: () => 0 };
const scaleSet = { mode: 'scale-set' } as const;
const endings: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const end of endings.splice(0)) await end();
});

function watched(clock: HandClock, options: Parameters<typeof githubService>[0]) {
  const bench = githubService({ clock, ...options });
  const on = new AbortController();
  const seen: CiEvent[] = [];
  bench.service.observe((event) => seen.push(event), on.signal);
  endings.push(async () => {
    on.abort();
    await bench.service.close();
    bench.close();
  });
  const soon = <T>(what: () => T) =>
    expect.poll(
      () => {
        clock.advance(10);
        return what();
      },
      { timeout: 20_000, interval: 5 },
    );
  return { ...bench, seen, soon };
}

it('has the jobs of a repository counted that ask for its name there', async () => {
  const { github, service, soon } = watched(handClock(), { queues: ['acme/demo'], pool: away, slots });
  for (const labels of [['gpu'], ['gpu'], ['burst.gpu'], ['other']]) github.queue({ labels });
  await soon(() => service.waiting('burst.gpu')).toBe(2);
});

it('has the jobs of an organisation counted as webhooks tell them', async () => {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  const secret = { kind: 'memory', name: 'the test', expires: null, read: () => hookSecret } as const;
  const webhook = { listen: { host: '127.0.0.1', port }, secret };
  const { github, service, soon } = watched(handClock(), { config: { webhook }, pool: away, slots });
  const message = github.webhook('queued', github.queue({ labels: ['gpu'] }), hookSecret);
  const send = () => fetch(`http://127.0.0.1:${port}/hook`, message).then(({ status }) => status);
  await expect.poll(() => send().catch(() => null), { timeout: 20_000 }).toBe(204);
  await soon(() => service.waiting('burst.gpu')).toBe(1);
});

it('has the jobs of its scale set counted, and leaves its session and its jobs to a machine', async () => {
  const clock = handClock();
  const github = memoryGitHub({ clock });
  const controller = watched(clock, { github, config: scaleSet, pool: away, slots });
  const { soon } = controller;
  const set = () => github.sets[0];
  await soon(() => controller.service.waiting('burst.gpu')).toBe(0);
  expect(set()).toMatchObject({ name: 'gpu', scope: '/orgs/acme', session: null });
  for (let n = 0; n < 2; n++) github.queue({ labels: ['gpu'] });
  await soon(() => controller.service.waiting('burst.gpu')).toBe(2);

  const machine = watched(clock, { github, config: scaleSet, tags: ['gpu'] });
  machine.live.add('a1');
  const { script } = await machine.service.register(contextOf('a1', { name: 'burst-3fa9c1-gpu-1' }), patient);
  const runner = github.connect(jitIn(script));
  await soon(() => set()?.session ?? null).not.toBeNull();
  await soon(() => runner.take()).not.toBeNull();
  await soon(() => controller.service.waiting('burst.gpu')).toBe(1);
  const reasons = [...controller.seen, ...machine.seen].filter((event) => event.kind === 'hold' && event.reason !== null);
  expect(reasons).toEqual([]);
});

it('has what a machine left in its scale set removed', async () => {
  const clock = handClock();
  const github = memoryGitHub({ clock });
  const machine = watched(clock, { github, config: scaleSet, tags: ['gpu'] });
  machine.live.add('a1');
  await machine.service.register(contextOf('a1', { name: 'burst-3fa9c1-gpu-1' }), patient);
  const controller = watched(clock, { github, config: scaleSet, pool: away, slots });
  const found = await controller.service.removeNamed((name) => name.startsWith('burst-3fa9c1-'), patient);
  expect(found).toEqual({ removed: [expect.stringMatching(/^burst-3fa9c1-gpu-1-.*-a1$/)], left: [], unknown: [] });
  expect(github.runners.size).toBe(0);
});

it('does not make doctor warn of runners that have its labels', async () => {
  const bench = githubService({ queues: ['acme/demo'], pool: away, slots });
  endings.push(async () => bench.close());
  await bench.client.generateJitConfig(
    'repos/acme/demo',
    { name: 'burst-3fa9c1-gpu-1-0123abcd-a1', group: 1, labels: ['gpu'] },
    patient,
  );
  expect((await bench.service.check(patient)).filter(({ message }) => message.includes('labels of pool'))).toEqual([]);
});
