/** Holds by people, over a real store: a restart is a new set of pools over the same one. */
import { afterEach, beforeEach, expect, test } from 'vitest';
import { poolLike } from '../../../test/kit/pool.ts';
import { eachScratch } from '../../../test/support/each-scratch.ts';
import { openStore, type Store } from '../../store/store.ts';
import { Holds } from './holds.ts';
import { Pause } from './pause.ts';

const dir = eachScratch();
let store: Store;
beforeEach(() => {
  store = openStore(dir.path);
});
afterEach(() => store.close());

function start(...names: readonly string[]) {
  const pools = names.map((name) => poolLike({ name }, { leaving: name.endsWith('(leaving)') }));
  const pause = new Pause();
  const holds = new Holds({ clock: { wall: () => 1 }, store, reconciler: { pools, pause, replanAll() {} } });
  holds.restore();
  const held = () =>
    Object.fromEntries(pools.map((pool) => [pool.config.name, [...pool.pause.details, ...(pool.draining ? ['drains'] : [])]]));
  return { holds, held, pools, pause };
}

test('pauses, each by its reason, and drains are there after a restart, also on a new boot of the program', () => {
  const before = start('a', 'b');
  before.holds.pause('a', 'maintenance');
  before.holds.pause('a', 'hand');
  before.holds.drain('b');
  const now = { a: ['by hand', 'by maintenance'], b: ['drains'] };
  expect(before.held()).toEqual({ ...now, a: now.a.toReversed() });
  store.close();
  store = openStore(dir.path);
  const after = start('a', 'b');
  expect(after.held()).toEqual(now);
  expect(after.pools[0]?.pause.closes).toBe(true);
  after.holds.resume('a', 'hand');
  after.holds.resume('b', 'hand');
  expect(start('a', 'b').held()).toEqual({ a: ['by maintenance'], b: [] });
});

test('a pause of all pools holds those too that a later config adds; one of them can be resumed alone', () => {
  start('a', 'b').holds.pause(null, 'upgrade');
  expect(start('a', 'b', 'c').held()).toEqual({ a: ['by upgrade'], b: ['by upgrade'], c: ['by upgrade'] });
  start('a', 'b', 'c').holds.resume('b', 'upgrade');
  expect(start('a', 'b', 'c').held()).toEqual({ a: ['by upgrade'], b: [], c: ['by upgrade'] });
  start('a', 'b', 'c').holds.resume(null, 'upgrade');
  expect(start('a', 'b', 'c').held()).toEqual({ a: [], b: [], c: [] });
});

test('a resume returns what else holds a pool: other people, and onejob itself', () => {
  const { holds, pools, pause } = start('a', 'b');
  holds.pause(null, 'maintenance');
  holds.pause('b', 'hand');
  expect(holds.resume(null, 'hand').held).toEqual([
    { pool: 'a', by: ['maintenance'], because: [] },
    { pool: 'b', by: ['maintenance'], because: [] },
  ]);
  pools[1]?.pause.hold('disk', '/data is full');
  pause.hold('state', 'the store is full');
  expect(holds.resume('b', 'maintenance').held).toEqual([{ pool: 'b', by: [], because: ['the store is full', '/data is full'] }]);
  expect(holds.resume('a', 'maintenance').held).toEqual([{ pool: 'a', by: [], because: ['the store is full'] }]);
});

test('a resume returns whether it has ended anything', () => {
  const { holds } = start('a', 'b');
  expect(holds.resume('a', 'hand').changed).toBe(false);
  holds.pause('b', 'hand');
  expect(holds.resume('a', 'hand').changed).toBe(false);
  expect(holds.resume('b', 'other').changed).toBe(false);
  expect(holds.resume('b', 'hand').changed).toBe(true);
  holds.drain(null);
  expect(holds.resume('a', 'hand').changed).toBe(true);
});

test('a pool that left the config is neither held nor resumed, and an unknown pool changes nothing', () => {
  const { holds, held } = start('a', 'old/1 (leaving)');
  holds.resume(null, 'hand');
  expect(held()).toEqual({ a: [], 'old/1 (leaving)': ['drains'] });
  const unknown = expect.objectContaining({ code: 'E_POOL_UNKNOWN', hint: 'The pools are: a.' });
  expect(() => holds.pause('old/1 (leaving)', 'hand')).toThrow(unknown);
  expect(() => holds.pause('nope', 'hand')).toThrow(unknown);
  expect(store.holds.all()).toEqual([]);
});
