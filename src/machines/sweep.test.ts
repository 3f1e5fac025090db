import { expect, it } from 'vitest';
import { handClock } from '../../test/kit/core.ts';
import { type Cloud, CloudError, type Listing, type Thing } from '../ports/cloud.ts';
import { sweep } from './sweep.ts';

const signal = new AbortController().signal;
const now = Date.UTC(2030, 0, 1) / 1000;

const thing = (more: Partial<Thing> = {}): Thing => ({
  kind: 'machine',
  id: 'i-1',
  place: 'here',
  run: 'onejob-00000000000000aa',
  host: 'burst',
  born: now - 5000,
  expires: now - 10,
  state: 'running',
  offer: null,
  ...more,
});

/** A cloud in which things go as `gone` says. */
function world(things: Thing[], gone: (one: Thing) => void = (one) => void things.splice(things.indexOf(one), 1)) {
  const asked: string[] = [];
  const said = { unknown: [] as string[], failed: null as Error | null, lists: 0 };
  const cloud = {
    name: 'sim',
    skew: () => 0,
    async list(): Promise<Listing> {
      said.lists += 1;
      if (said.failed !== null) throw said.failed;
      return { things: [...things], unknown: said.unknown };
    },
    async destroy({ kind, id }: Thing) {
      asked.push(`${kind} ${id}`);
      const found = things.find((one) => one.id === id);
      if (found !== undefined) gone(found);
    },
  } as unknown as Cloud;
  return { cloud, asked, said, things };
}

/** Lets time pass until the sweep has ended. */
async function swept(cloud: Cloud, more: { all?: boolean; dryRun?: boolean; told?: (text: string) => void } = {}) {
  const clock = handClock();
  const options = { owner: 'ours', all: false, dryRun: false, patience: 120_000, ...more };
  let isOver = false;
  const work = sweep(cloud, options, clock, signal).finally(() => {
    isOver = true;
  });
  while (!isOver) {
    await new Promise((resolve) => setImmediate(resolve));
    clock.advance(1000);
  }
  return work;
}

it('removes what is past its end, machine first, and says so after two complete lists', async () => {
  const disk = thing({ kind: 'disk', id: 'vol-1' });
  const { cloud, asked, said } = world([disk, thing()]);
  const result = await swept(cloud);
  expect(asked).toEqual(['machine i-1', 'disk vol-1']);
  expect(result).toMatchObject({ left: [], kept: [], unknown: [] });
  expect(result.removed).toHaveLength(2);
  expect(said.lists).toBe(4);
});

it('keeps a machine that works, with all that belongs to it, unless everything is to go', async () => {
  const living = [thing({ expires: now + 5000 }), thing({ kind: 'disk', id: 'vol-1', expires: now + 5000 })];
  const kept = world([...living]);
  expect(await swept(kept.cloud)).toMatchObject({ removed: [], left: [], kept: living });
  expect(kept.asked).toEqual([]);
  const all = world([...living]);
  expect(await swept(all.cloud, { all: true })).toMatchObject({ left: [], kept: [] });
  expect(all.asked).toHaveLength(2);
});

it('removes what two complete lists show without a machine', async () => {
  const { cloud, asked } = world([thing({ kind: 'interface', id: 'eni-1', expires: now + 5000 })]);
  expect(await swept(cloud)).toMatchObject({ left: [], unknown: [] });
  expect(asked).toEqual(['interface eni-1']);
});

it('what does not go is left, and asked again until the time is over', async () => {
  const { cloud, asked } = world([thing()], () => {});
  const result = await swept(cloud);
  expect(result.left).toMatchObject([{ id: 'i-1' }]);
  expect(asked.length).toBeGreaterThan(3);
});

it('what could not be listed is unknown, never gone', async () => {
  const partial = world([]);
  partial.said.unknown = ['region eu-west-1 (403)'];
  expect(await swept(partial.cloud)).toMatchObject({ unknown: ['region eu-west-1 (403)'], listedAt: null });
  const failed = world([]);
  failed.said.failed = new Error('no answer');
  expect(await swept(failed.cloud)).toMatchObject({ unknown: ['no answer'], listedAt: null });
});

it('ends at once when asking again cannot help, with what to do', async () => {
  const refused = world([]);
  refused.said.failed = new CloudError('E_CLOUD_CREDENTIAL', 'There is no credential.', { hint: 'Set AWS_PROFILE.', retry: false });
  expect(await swept(refused.cloud)).toMatchObject({ unknown: ['There is no credential. Set AWS_PROFILE.'], isRefused: true });
  expect(refused.said.lists).toBe(1);
  const silent = world([]);
  silent.said.failed = new CloudError('E_CLOUD_UNREACHABLE', 'No answer.', { retry: true });
  expect(await swept(silent.cloud)).toMatchObject({ isRefused: false });
  expect(silent.said.lists).toBeGreaterThan(3);
});

it('says what it cannot list as soon as it knows, once', async () => {
  const partial = world([]);
  partial.said.unknown = ['region eu-west-1 (403)'];
  const told: string[] = [];
  await swept(partial.cloud, { told: (text) => told.push(text) });
  expect(told).toEqual(['cannot list all of it: region eu-west-1 (403); trying again']);
});

it('a dry run removes nothing, and says what would go', async () => {
  const { cloud, asked } = world([thing()]);
  expect(await swept(cloud, { dryRun: true })).toMatchObject({ left: [{ id: 'i-1' }], removed: [] });
  expect(asked).toEqual([]);
});

it('never touches what has no name of a machine', async () => {
  const { cloud, asked } = world([thing({ run: null })]);
  expect(await swept(cloud, { all: true })).toMatchObject({ left: [], kept: [{ run: null }] });
  expect(asked).toEqual([]);
});
