/** Pins outlive the daemon; the first pipeline stays the first. */
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { eachScratch } from '../../test/support/each-scratch.ts';
import { openStore, type Store } from './store.ts';

const dir = eachScratch();
let store: Store;
beforeEach(() => {
  store = openStore(join(dir.path, 'state'));
});
afterEach(() => store.close());

const [one, two] = ['1'.repeat(32), '2'.repeat(32)];
const first = (fingerprint: string, pipeline: string, at: number) =>
  store.transaction({ durable: true }, () => store.secretPins.first({ fingerprint, pipeline, name: 'TOKEN', at }));
const allow = (fingerprint: string, pipeline: string, at: number) =>
  store.transaction({ durable: true }, () => store.secretPins.allow({ fingerprint, pipeline, at }));

it('only one pipeline is the first; others may be allowed in addition', () => {
  expect([first(one, 'acme/solver', 1), first(one, 'acme/docs', 2), first(one, 'acme/solver', 3)]).toEqual([true, false, false]);
  expect([allow(one, 'acme/docs', 4), allow(one, 'acme/docs', 5), allow(one, 'acme/solver', 6)]).toEqual([true, false, false]);
  expect(store.secretPins.of(one)).toEqual([
    { fingerprint: one, pipeline: 'acme/solver', name: 'TOKEN', origin: 'used', at: 1 },
    { fingerprint: one, pipeline: 'acme/docs', name: null, origin: 'allowed', at: 4 },
  ]);
});

it('a value that was allowed before its first use has no first pipeline', () => {
  allow(one, 'acme/docs', 1);
  expect(first(one, 'evil/docs', 2)).toBe(false);
  expect(store.secretPins.of(one)).toHaveLength(1);
});

it('all are listed by value, and survive a restart', () => {
  first(two, 'b/b', 1);
  first(one, 'a/a', 2);
  allow(two, 'c/c', 3);
  store.close();
  store = openStore(join(dir.path, 'state'));
  expect(store.secretPins.all().map(({ fingerprint, pipeline }) => `${fingerprint[0]} ${pipeline}`)).toEqual([
    '2 b/b',
    '2 c/c',
    '1 a/a',
  ]);
});

it('one pipeline or all can be removed; then the next is the first again', () => {
  first(one, 'a/a', 1);
  allow(one, 'b/b', 2);
  allow(one, 'c/c', 3);
  expect([store.secretPins.forget(one, 'b/b'), store.secretPins.forget(one, 'b/b'), store.secretPins.forget(two, null)]).toEqual([
    1, 0, 0,
  ]);
  expect(store.secretPins.forget(one, null)).toBe(2);
  expect(store.secretPins.of(one)).toEqual([]);
  expect(first(one, 'c/c', 4)).toBe(true);
});
