import { join } from 'node:path';
import { expect, it } from 'vitest';
import { scratch } from '../../../test/support/scratch.ts';
import { createPinStore } from '../../secrets/job-secrets.ts';
import { openStore } from '../../store/store.ts';
import { systemClock } from '../../system/system-clock.ts';

it('a value is pinned to a pipeline, the first one, and never to a pattern or an invalid name', () => {
  using dir = scratch();
  const store = openStore(join(dir.path, 'state'));
  const book = createPinStore(store, systemClock);
  const fingerprint = '0'.repeat(32);
  for (const pipeline of ['acme/*', '*/*', 'acme/x; reboot', 'acme', ''])
    expect(() => book.first(fingerprint, pipeline, 'A')).toThrow('A value cannot be pinned to no pipeline.');
  expect(book.of(fingerprint)).toEqual([]);
  expect(book.first(fingerprint, 'acme/app', 'A')).toEqual(['acme/app']);
  expect(book.first(fingerprint, 'acme/other', 'A')).toEqual(['acme/app']);
  store.close();
});
