import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { expect, test } from 'vitest';
import { eachScratch } from '../../test/support/each-scratch.ts';
import { asNobody } from '../../test/support/nobody.ts';
import { first } from './migrations.ts';
import { registrationsLeft } from './open-to-read.ts';
import { openStore } from './store.ts';

const dir = eachScratch();

/** What the first version created in addition. */
const droppedLater = [
  'CREATE TABLE leases (device TEXT NOT NULL, slot TEXT NOT NULL, PRIMARY KEY (device, slot)) STRICT, WITHOUT ROWID',
  "CREATE TABLE registrations (agent TEXT PRIMARY KEY, service TEXT NOT NULL, state TEXT NOT NULL CHECK (state IN ('intent', 'made', 'removed')), placeholder INTEGER NOT NULL DEFAULT 0, remote TEXT, intent_at INTEGER NOT NULL, made_at INTEGER, removed_at INTEGER) STRICT, WITHOUT ROWID",
  'CREATE TABLE proofs (id INTEGER PRIMARY KEY, device TEXT NOT NULL, slot TEXT NOT NULL, agent TEXT NOT NULL, verdict TEXT NOT NULL, detail TEXT NOT NULL, proved_at INTEGER NOT NULL) STRICT',
  'CREATE INDEX proofs_of_device ON proofs (device, id)',
];

test('unremoved registrations are listed, with and without a manager', () => {
  const store = openStore(dir.path);
  for (const agent of ['p1', 'p2'])
    store.transaction({ durable: false }, () => {
      store.registrations.intend({ agent, service: 'azure', place: '1', name: `name-${agent}`, placeholder: true }, 1);
    });
  store.transaction({ durable: false }, () => store.registrations.removed('p1', 2));
  const left = [{ service: 'azure', name: 'name-p2' }];
  expect(registrationsLeft(dir.path)).toEqual(left);
  store.close();
  expect(registrationsLeft(dir.path)).toEqual(left);
  openStore(dir.path).close();
});

test('nothing is left without state, or with the state of an old version', () => {
  expect(registrationsLeft('/nowhere')).toEqual([]);
  expect(registrationsLeft(dir.path)).toEqual([]);
  const db = new DatabaseSync(join(dir.path, 'onejob.db'));
  for (const statement of [...first, ...droppedLater, 'PRAGMA user_version = 1']) db.exec(statement);
  db.close();
  expect(registrationsLeft(dir.path)).toEqual([]);
  const store = openStore(dir.path);
  expect([store.registrations.open('azure'), store.proofs.of(null, 1), registrationsLeft(dir.path)]).toEqual([[], [], []]);
  store.close();
});

test('a state of another user does not count as missing', async () => {
  openStore(dir.path).close();
  await asNobody(async () => {
    expect(() => registrationsLeft(dir.path)).toThrow(expect.objectContaining({ code: 'E_STATE_DIR' }));
  });
});

test('an invalid database file is an error with a hint', () => {
  writeFileSync(join(dir.path, 'onejob.db'), 'x'.repeat(5_000));
  expect(() => registrationsLeft(dir.path)).toThrow(expect.objectContaining({ code: 'E_STATE_CORRUPT' }));
});
