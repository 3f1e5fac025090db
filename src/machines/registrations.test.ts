/** What machines leave at CI services, on a Gitea in memory and in virtual time. */
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { patient } from '../../test/kit/azure.ts';
import { type HandClock, handClock } from '../../test/kit/core.ts';
import { giteaService } from '../../test/kit/gitea-service.ts';
import { scratch } from '../../test/support/scratch.ts';
import type { Machine } from '../store/machine.ts';
import { openStore, type Store } from '../store/store.ts';
import { Clearing, leftBehind, sweepRegistrations } from './registrations.ts';

const [run, other] = ['onejob-3fa9c10000000001', 'onejob-77bb000000000002'];
const [one, two] = ['burst-3fa9c1-gpu-1-0123abcd-a1', 'burst-3fa9c1-gpu-2-0123abcd-a2'];
const second = 1_000;

let clock: HandClock;
let forge: ReturnType<typeof giteaService>;
let store: Store;
let dir: ReturnType<typeof scratch>;
let clearing: Clearing;

const open = () =>
  new Clearing({ clock, store, services: [forge.service], log: { info: () => {}, warn: () => {}, error: () => {} } });

beforeEach(() => {
  clock = handClock(Date.parse('2026-11-27T08:00:00Z'));
  dir = scratch();
  store = openStore(join(dir.path, 'state'));
  forge = giteaService({ clock });
  clearing = open();
});
afterEach(() => {
  clearing.close();
  forge.close();
  store.close();
  dir[Symbol.dispose]();
});

/** A machine of which two lists showed nothing. */
function gone(of = run, more: Partial<Machine> = {}): Machine {
  const now = Math.floor(clock.wall() / 1000);
  const machine: Machine = {
    run: of,
    owner: 'ours',
    cloud: 'aws',
    host: 'burst',
    offer: { type: 'g6.xlarge', spot: false, zone: null },
    token: 't',
    born: now - 3600,
    expires: now + 3600,
    state: 'gone',
    since: now,
    made: { id: 'i-1', place: 'us', zone: null },
    end: null,
    why: 'The cloud has ended it.',
    isFailure: true,
    joinedAt: now - 3000,
    stage: 'joined',
    items: [],
    absent: [now - 5, now],
    seenAt: now - 60,
    tokenHash: '',
    credentialHash: 'x',
    by: 'test',
    price: null,
    console: null,
    registrations: null,
    ...more,
  };
  store.transaction({ durable: false }, () => store.machines.put(machine));
  return machine;
}

const names = () => forge.gitea.runners.map(({ name }) => name);
const runner = (name: string) => forge.gitea.runners.find((row) => row.name === name);
const written = (of = run) => store.machines.get(of)?.registrations ?? null;
/** Until what has to be done now is done. */
const soon = <T>(what: () => T) =>
  expect.poll(
    () => {
      clock.advance(0);
      return what();
    },
    { timeout: 10_000, interval: 1 },
  );

describe('after a machine is gone', () => {
  it('its offline agents are removed, and its receipt names them', async () => {
    for (const name of [one, two, 'burst-77bb00-gpu-1-ffffabcd-b1', 'burst-3fa9c1-by-hand', 'somebody'])
      forge.gitea.add(name, ['gpu']);
    clearing.gone(gone());
    await soon(() => written()).toMatchObject({ removed: [one, two], left: [], unknown: [], clearedAt: clock.wall() / 1000 });
    expect(names()).toEqual(['burst-77bb00-gpu-1-ffffabcd-b1', 'burst-3fa9c1-by-hand', 'somebody']);
    const calls = forge.gitea.calls.length;
    clock.advance(86_400 * second);
    expect(forge.gitea.calls).toHaveLength(calls);
  });

  it('one that still counts as online is removed as soon as it does not, and never before', async () => {
    for (const name of [one, two]) forge.gitea.add(name, ['gpu']);
    const online = runner(two);
    if (online !== undefined) online.isOnline = true;
    clearing.gone(gone());
    await soon(() => written()).toMatchObject({ removed: [one], left: [two], clearedAt: null });
    const looks = () => forge.gitea.calls.filter((call) => call.endsWith('/runners')).length;
    const before = looks();
    clock.advance(31 * second);
    await soon(looks).toBe(before + 1);
    expect(await clearing.finish()).toEqual([two]);
    expect(names()).toEqual([two]);
    if (online !== undefined) online.isOnline = false;
    clock.advance(121 * second);
    await soon(() => written()).toMatchObject({ removed: [one, two], left: [], clearedAt: clock.wall() / 1000 });
    expect(names()).toEqual([]);
  });

  it('a service that is away is asked again, also by the next controller', async () => {
    forge.gitea.add(one, ['gpu']);
    const back = forge.gitea.goAway();
    clearing.gone(gone());
    await soon(() => written()).toMatchObject({ removed: [], unknown: [expect.stringMatching(/./)], clearedAt: null });
    clearing.close();
    back();
    clearing = open();
    clearing.start();
    await soon(() => written()).toMatchObject({ removed: [one], unknown: [], clearedAt: expect.any(Number) });
  });

  it('what a controller did not even begin is done by the next one, and what is done is not done again', async () => {
    forge.gitea.add(one, ['gpu']);
    gone();
    clearing.start();
    await soon(() => written()).toMatchObject({ removed: [one] });
    clearing.close();
    const calls = forge.gitea.calls.length;
    clearing = open();
    clearing.start();
    await clearing.finish();
    expect(forge.gitea.calls).toHaveLength(calls);
  });

  it('one that never existed costs no call, and one that is back keeps what it has', async () => {
    forge.gitea.add(one, ['gpu']);
    clearing.gone(gone(other, { made: null, credentialHash: null }));
    await clearing.finish();
    expect(forge.gitea.calls).toEqual([]);
    clearing.gone(gone());
    gone(run, { state: 'ending' });
    await clearing.finish();
    expect(store.machines.get(run)).toMatchObject({ state: 'ending', registrations: null });
    expect(names()).toEqual([one]);
  });

  it('two at the same time cost one look, and each receipt has its own', async () => {
    const third = 'burst-77bb00-gpu-1-ffffabcd-b1';
    for (const name of [one, third]) forge.gitea.add(name, ['gpu']);
    const machines = [gone(), gone(other)];
    for (const machine of machines) clearing.gone(machine);
    await clearing.finish();
    await soon(() => [written()?.removed, written(other)?.removed]).toEqual([[one], [third]]);
    expect(forge.gitea.calls.filter((call) => call === 'GET /api/v1/orgs/acme/actions/runners')).toHaveLength(1);
  });
});

describe('a sweep', () => {
  const existing = async () => [{ host: 'burst', run }];

  it('knows the agents of machines that are not there', () => {
    const isLeft = leftBehind(
      ['burst', 'burst-big'],
      [
        { host: 'burst', run },
        { host: null, run: null },
      ],
    );
    const all = [
      one,
      'burst-77bb00-gpu-1',
      'burst-big-77bb00-x',
      'burst-77bb0-x',
      'burst-gpu-1',
      'box-77bb00-x',
      'burst-77bb000-x',
    ];
    expect(all.filter(isLeft)).toEqual(['burst-77bb00-gpu-1', 'burst-big-77bb00-x']);
  });

  it('removes them, and nothing of a machine that lives, of people and of others', async () => {
    const all = [one, 'burst-77bb00-gpu-1-ffffabcd-b1', 'burst-77bb00-mine', 'box-1-0123abcd-c1'];
    for (const name of all) forge.gitea.add(name, ['gpu']);
    const options = { dryRun: false, patience: 60 * second };
    const dry = await sweepRegistrations([forge.service], ['burst'], existing, { ...options, dryRun: true }, clock, patient);
    expect(names()).toEqual(all);
    const found = await sweepRegistrations([forge.service], ['burst'], existing, options, clock, patient);
    expect(found).toEqual([{ service: 'forge', result: { removed: [all[1]], left: [], unknown: [] } }]);
    expect(dry).toEqual(found);
    expect(names()).toEqual([all[0], all[2], all[3]]);
  });

  it('removes nothing when nobody knows which machines exist', async () => {
    forge.gitea.add(one, ['gpu']);
    const options = { dryRun: false, patience: 60 * second };
    const found = await sweepRegistrations([forge.service], ['burst'], async () => null, options, clock, patient);
    expect(found).toMatchObject([{ result: { removed: [], unknown: [expect.stringContaining('nothing was removed')] } }]);
    expect(names()).toEqual([one]);
  });

  it('waits for one that still counts as online, and reports it in the end', async () => {
    forge.gitea.add(two, ['gpu']).isOnline = true;
    const options = { dryRun: false, patience: 20 * second };
    const swept = sweepRegistrations([forge.service], ['burst'], async () => [], options, clock, patient);
    await soon(() => {
      clock.advance(second);
      return clock.now();
    }).toBeGreaterThan(60 * second);
    expect(await swept).toMatchObject([{ result: { removed: [], left: [two] } }]);
    expect(names()).toEqual([two]);
  });
});
