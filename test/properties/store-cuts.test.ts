/**
 * The power fails at the moment at which something is told, or begun outside: the store of the next start has it. Which commits of the
 * loop wait for a disk, the simulator shows.
 */
import { expect, test } from 'vitest';
import { createStackEntry } from '../../src/ci/buildkite/stacks/stacks.ts';
import { Registrations } from '../../src/ci/early/registrations.ts';
import { createOwnQueue, type OwnQueue } from '../../src/ci/own-queue/own-queue.ts';
import { jobRequest } from '../../src/contract/job.ts';
import { createWishes } from '../../src/machines/wishes.ts';
import { ClockLocks } from '../../src/manager/devices/benchmark-clocks.ts';
import { KnownDevices } from '../../src/manager/devices/known-devices.ts';
import { HeldJobs, type HeldJobsParts } from '../../src/manager/held/held-jobs.ts';
import { Holds } from '../../src/manager/loop/holds.ts';
import { Pause } from '../../src/manager/loop/pause.ts';
import { createSecretPins } from '../../src/manager/services/secret-pins.ts';
import { createNotices } from '../../src/notices/notices.ts';
import { createPinStore } from '../../src/secrets/job-secrets.ts';
import type { Store } from '../../src/store/store.ts';
import { handClock } from '../kit/core.ts';
import { poolLike } from '../kit/pool.ts';
import { plainRecipe } from '../kit/process-runtime.ts';
import { gpu, oneDevice } from '../support/devices.ts';
import { losingStore } from '../support/power.ts';

interface Fact {
  /** Returns when it was told. `begun`: something begins now that must not be forgotten. */
  readonly act: (store: Store, begun: () => void) => unknown;
  /** What the next start finds of it. */
  readonly find: (store: Store) => unknown;
  /** Default: what `act` returns. */
  readonly told?: unknown;
}

const clock = handClock();
const log = { info() {}, warn() {}, error() {} };
const never = new AbortController().signal;
const pool = { name: 'p', runtime: null, timeout: null, recipe: plainRecipe, devices: { ...oneDevice, count: 0 }, standby: true };
const id = 'abcdef012345';
const fingerprint = '0'.repeat(32);
const [first, other] = ['acme/app', 'acme/other'] as const;

/** Does something with a queue that has one job. */
const queued = (act: (queue: OwnQueue) => void) => (store: Store) => {
  const queue = createOwnQueue({ store, pools: [pool] });
  queue.submit(jobRequest.parse({ command: ['true'], pool: 'p', id }));
  act(queue);
};
const jobIn = ({ jobs }: Store) => jobs.get(id)?.progress;

const quarantine = {
  reason: 'Xid 79',
  hint: '',
  evidence: null,
  failures: 1,
  remedy: 'person',
  since: 0,
  boot: 'b',
  retryAt: null,
};

const facts: Record<string, Fact> = {
  'the id of this installation, by which it finds what it has made': { act: ({ owner }) => owner, find: ({ owner }) => owner },
  'an accepted job': { act: queued(() => {}), find: (store) => jobIn(store)?.state, told: 'queued' },
  'a cancelled job': { act: queued((queue) => queue.cancel(id)), find: (store) => jobIn(store)?.state, told: 'done' },
  'a job that a machine is to have': {
    act: queued(({ elsewhere }) => elsewhere.record({ change: 'reserved', job: id, agent: 'm' }, () => {})),
    find: (store) => jobIn(store)?.agent,
    told: 'm',
  },
  'a paused pool': {
    act(store) {
      const reconciler = { pools: [poolLike({ name: 'p' })], pause: new Pause(), replanAll() {} };
      new Holds({ clock, store, reconciler }).pause('p', 'maintenance');
    },
    find: ({ holds }) => holds.all().map(({ reason }) => reason),
    told: ['maintenance'],
  },
  'a device in quarantine': {
    act(store) {
      const known = new KnownDevices({ clock, store });
      const card = gpu(1, { uuid: 'GPU-a', index: 0, minor: 0, mig: null });
      known.updateSeen([card]);
      known.save([{ ...known.find('GPU-a', []), quarantine }] as never);
    },
    find: ({ devices }) => devices.all().map((one) => one.quarantine?.reason),
    told: ['Xid 79'],
  },
  'clocks that are locked': {
    async act(store, begun) {
      const known = new KnownDevices({ clock, store });
      known.updateSeen([gpu(0)]);
      const run = async () => {
        begun();
        return { tool: 'nvidia-smi', args: [], output: '', code: 0, hung: false, missing: false, cut: false };
      };
      await new ClockLocks({ clock, runner: { run }, known }).lock(gpu(0).uuid, 'a', 1410, never);
    },
    find: ({ devices }) => devices.all().map(({ locked }) => locked?.mhz),
    told: [1410],
  },
  'a failed job that is held': {
    async act(store) {
      const runtime = { name: 'docker', holding: {}, disk: async () => null };
      const parts = { clock, log, table: store.held, transaction: store.transaction, temporary: false, runtimes: () => [runtime] };
      const more = { pools: [], minFree: 0, boundary() {}, changed() {}, isInSlot: () => true };
      const held = new HeldJobs({ ...parts, ...more } as unknown as HeldJobsParts);
      const failed = { agent: 'a', job: 'j', pool: 'p', slot: 'p/1', name: 'n', recipe: plainRecipe, holdFailed: 60_000, runtime };
      await held.consider(failed as never, never);
      await held.close();
    },
    find: ({ held }) => held.all().map(({ job }) => job),
    told: ['j'],
  },
  'an agent that is registered at a service': {
    async act(store, begun) {
      const parts = { service: 'azure', store, opened: new Set(['azure']), clock };
      const of = { agent: 'a', place: '1', name: 'n', placeholder: false };
      const create = async () => {
        begun();
        return { id: '7' };
      };
      await new Registrations(parts, () => ({ find: async () => null }) as never).register(of, create, never);
    },
    find: ({ registrations }) => registrations.open('azure').map(({ name }) => name),
    told: ['n'],
  },
  'a stack of Buildkite': {
    async act(store, begun) {
      const register = async () => {
        begun();
        return 'r';
      };
      const stacks = { register, deregister: async () => {} };
      await createStackEntry('bk', stacks as never, { host: 'h', version: '1', store, clock }).register('q', never);
    },
    find: ({ registrations }) => registrations.open('bk').length,
    told: 1,
  },
  'how many machines people want': {
    act: (store) => createWishes(clock, store).set('burst', 2),
    find: ({ machines }) => machines.wanted().get('burst')?.machines,
    told: 2,
  },
  'the first pipeline that has used an encrypted value': {
    act: (store) => createPinStore(store, clock).first(fingerprint, first, 'A'),
    find: ({ secretPins }) => secretPins.of(fingerprint).map(({ pipeline }) => pipeline),
    told: [first],
  },
  'a pipeline that a person has allowed': {
    act(store) {
      createPinStore(store, clock).first(fingerprint, first, 'A');
      createSecretPins({ store, clock }).allow(fingerprint, [other]);
    },
    find: ({ secretPins }) => secretPins.of(fingerprint).map(({ pipeline }) => pipeline),
    told: [first, other],
  },
  'a message that people get': {
    async act(store, begun) {
      const cause = { key: 'k', kind: 'device', subject: 's', message: 'm', hint: null, stage: 0, patience: 0 } as const;
      const send = async () => {
        begun();
        return 'it answered 200';
      };
      const see = () => ({ causes: [cause], blind: new Set<never>() });
      const notices = createNotices({ clock, log, store, host: 'h', see, target: 't', send });
      notices.look();
      await notices.close();
    },
    find: ({ notices }) => notices.all().map(({ key }) => key),
    told: ['k'],
  },
  'a runtime on which there may be something': {
    act: ({ runtimes }) => runtimes.add('docker'),
    find: ({ runtimes }) => runtimes.all(),
    told: ['docker'],
  },
};

test.each(Object.entries(facts))('%s', async (_, { act, find, told }) => {
  await using disk = losingStore();
  const found: unknown[] = [];
  const look = (): void => {
    if (found.length === 0) found.push(find(disk.cut()));
  };
  const said = await act(disk.store, look);
  look();
  expect(found).toEqual([told ?? said]);
});
