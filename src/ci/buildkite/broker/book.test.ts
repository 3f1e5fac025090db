import { chmodSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { describe, expect, it } from 'vitest';
import { type Scratch, scratch } from '../../../../test/support/scratch.ts';
import { createAliases } from './aliases.ts';
import { noSeals, openBook } from './book.ts';
import { newRecord } from './fleet.ts';
import { createSeal, installationKey } from './seal.ts';
import { openBrokerStore } from './store.ts';
import { keptLog } from './testing.ts';

function open({ path }: Scratch) {
  const log = keptLog();
  const store = openBrokerStore(path);
  const seal = createSeal(installationKey(path));
  const book = openBook({ store, seal, log, wall: () => 42 });
  return { book, store, seal, log, aliases: createAliases(book, seal), [Symbol.dispose]: () => store.close() };
}

const agent = (sandbox: string | null = null) =>
  newRecord(
    { kind: 'held', service: 'bk', slot: 'gpu/0', pool: 'gpu', name: 'n', phase: 'idle', agent: sandbox },
    {
      ...{ metaData: ['queue=q'], priority: 0, base: 'http://service', allowed: false, trusted: false },
      sealed: { ...noSeals, session: 'bkaa_canary', jobToken: 'bkaj_canary', secrets: [{ name: 'KEY', value: 'value-canary' }] },
    },
    1,
  );

describe('the book', () => {
  it('gives back what was written, with nothing secret in its files', () => {
    using dir = scratch();
    const record = { ...agent(), requestHeaders: { 'Buildkite-Shard': 'header-canary' } };
    const { id } = record.shown;
    {
      using first = open(dir);
      first.book.add(record);
      first.book.update(id, { shown: { phase: 'accepted', job: { id: 'j', env: { VARIABLE: 'env-canary' } } } });
      for (const name of readdirSync(dir.path)) {
        expect(readFileSync(join(dir.path, name), 'latin1'), name).not.toContain('canary');
        expect(statSync(join(dir.path, name)).mode & 0o077, name).toBe(0);
      }
    }
    using second = open(dir);
    const shown = { ...record.shown, phase: 'accepted', since: 42, job: { id: 'j', env: { VARIABLE: 'env-canary' } } };
    expect(second.book.get(id)).toEqual({ ...record, shown });
  });

  it('tells of each change, once it is written, and of the end', () => {
    using dir = scratch();
    using here = open(dir);
    const record = agent();
    const { id } = record.shown;
    const heard: unknown[] = [];
    here.book.watch(id, ({ shown }) => heard.push([shown.phase, here.store.all().length]));
    here.book.add(record);
    here.book.update(id, { log: { sequence: 1, offset: 9 } }, true);
    here.book.update(id, { shown: { phase: 'gone' } });
    expect(heard).toEqual([
      ['idle', 1],
      ['idle', 1],
      ['gone', 0],
    ]);
    expect(() => here.book.update(id, {})).toThrow(/no agent/);
  });

  it('keeps nothing of one that is over, not even in what the file has room for', () => {
    using dir = scratch();
    using here = open(dir);
    const record = agent();
    here.book.add(record);
    here.book.update(record.shown.id, { shown: { phase: 'gone' } });
    for (const name of readdirSync(dir.path)) {
      expect(readFileSync(join(dir.path, name), 'latin1'), name).not.toContain(record.shown.id);
    }
  });

  it('forgets an agent that it cannot unseal, and goes on', () => {
    using dir = scratch();
    const [one, other] = [agent(), agent()];
    {
      using first = open(dir);
      first.book.add(one);
      first.book.add(other);
    }
    const db = new DatabaseSync(join(dir.path, 'broker.db'));
    db.prepare('UPDATE agents SET sealed = (SELECT sealed FROM agents WHERE id = ?) WHERE id = ?').run(
      one.shown.id,
      other.shown.id,
    );
    db.close();
    using second = open(dir);
    expect(second.book.all().map(({ shown }) => shown.id)).toEqual([one.shown.id]);
    expect(second.log.lines).toMatchObject([{ level: 'warn', event: 'agent forgotten', fields: { id: other.shown.id } }]);
    expect(second.store.all()).toHaveLength(1);
  });

  it('changes nothing when it cannot be written', () => {
    using dir = scratch();
    using here = open(dir);
    const record = agent();
    here.book.add(record);
    here.store.close();
    expect(() => here.book.update(record.shown.id, { shown: { phase: 'accepting' } })).toThrow();
    expect(here.book.get(record.shown.id)?.shown.phase).toBe('idle');
  });
});

describe('the key', () => {
  it('is made once, for the owner alone', () => {
    using dir = scratch();
    const key = installationKey(dir.path);
    expect(installationKey(dir.path)).toEqual(key);
    expect(statSync(join(dir.path, 'key')).mode & 0o777).toBe(0o600);
    chmodSync(join(dir.path, 'key'), 0o644);
    installationKey(dir.path);
    expect(statSync(join(dir.path, 'key')).mode & 0o777).toBe(0o600);
    expect(readdirSync(dir.path)).toEqual(['key']);
  });

  it('that is none is not replaced in silence', () => {
    using dir = scratch();
    writeFileSync(join(dir.path, 'key'), 'x');
    expect(() => installationKey(dir.path)).toThrow(expect.objectContaining({ code: 'E_STATE_CORRUPT' }));
  });
});

describe('an alias', () => {
  it('is the same after a restart, and worth nothing for another sandbox or without its agent', () => {
    using dir = scratch();
    const record = agent('a1');
    const { id } = record.shown;
    let tokens: string[];
    {
      using first = open(dir);
      first.book.add(record);
      tokens = (['once', 'session', 'job'] as const).map((kind) => first.aliases.make(kind, record));
    }
    using second = open(dir);
    expect(tokens.map((token) => second.aliases.find(token)?.kind)).toEqual(['once', 'session', 'job']);
    expect(second.aliases.find(tokens[0] ?? '')?.record.shown.id).toBe(id);
    const [once = ''] = tokens;
    for (const wrong of ['', once.slice(0, -1), `${once}x`, once.replace('ojt', 'ojs'), once.replace(id, '0'.repeat(16))]) {
      expect(second.aliases.find(wrong), wrong).toBeNull();
    }
    second.book.update(id, { shown: { agent: 'a2' } });
    expect(second.aliases.find(once)).toBeNull();
    second.book.update(id, { shown: { agent: 'a1' } });
    expect(second.aliases.find(once)).not.toBeNull();
    second.book.update(id, { shown: { phase: 'gone' } });
    expect(second.aliases.find(once)).toBeNull();
  });

  it('is none without a sandbox', () => {
    using dir = scratch();
    using here = open(dir);
    expect(() => here.aliases.make('once', agent())).toThrow();
  });
});
