import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { eachScratch } from '../../test/support/each-scratch.ts';
import { lacks } from '../../test/support/require.ts';
import { emptySlot, type Slot } from '../core/slot.ts';
import { migrations } from './migrations.ts';
import { openStore, type Store } from './store.ts';

const dir = eachScratch();
let open: Store[];
beforeEach(() => {
  open = [];
});
afterEach(() => {
  for (const store of open) store.close();
});

function store(path = join(dir.path, 'state')): Store {
  const one = openStore(path);
  open.push(one);
  return one;
}
const path = (name: string) => join(dir.path, 'state', name);
const slot = (key: string, more: Partial<Slot> = {}): Slot => ({ ...emptySlot({ key, runtime: 'docker', grace: 5 }), ...more });
const save = (to: Store, one: Slot) => to.transaction({ durable: false }, () => to.slots.save(one));

describe('slots', () => {
  it('are restored unchanged, in every state', () => {
    const lanes: Slot['agent'][] = [
      { kind: 'free' },
      { kind: 'registering', agent: 'a', fingerprint: 'f', since: 1 },
      { kind: 'releasing', agent: 'a', job: 'j', limit: 7, fingerprint: 'f', since: 1.5 },
      { kind: 'idle', agent: 'a', fingerprint: 'f', online: true, since: 1 },
      { kind: 'retiring', agent: 'a', since: 1 },
      { kind: 'busy', agent: 'a', job: null, since: 1, due: null },
      { kind: 'ending', signal: 'TERM', agent: 'a', job: 'j', why: 'timeout', released: true, failure: null, due: 9 },
      {
        kind: 'ending',
        signal: 'KILL',
        agent: 'a',
        job: 'j',
        why: 'unreleased',
        released: false,
        failure: { code: 'E', message: 'm', retry: true },
        due: 9,
      },
      { kind: 'proving', agent: 'a', since: 1 },
    ];
    const standbys: Slot['standby'][] = [
      { kind: 'none' },
      { kind: 'preparing', agent: 'b', reserved: { job: 'k', limit: null, cold: true }, since: 2 },
      { kind: 'standby', agent: 'b', reserved: null, fingerprint: 'f', since: 2 },
    ];
    const slots = lanes.flatMap((agent, i) =>
      standbys.map((standby, j) =>
        slot(`p/${i}${j}`, {
          agent,
          standby,
          leaving: [{ agent: 'c', job: null, exit: { kind: 'code', code: 1 } }],
          devices: ['GPU-1'],
        }),
      ),
    );
    const first = store();
    for (const one of slots) save(first, one);
    save(first, slot('p/gone'));
    first.transaction({ durable: true }, () => first.slots.remove('p/gone'));
    first.close();
    expect(store().slots.all()).toEqual(slots.map((one) => ({ slot: one, thisBoot: true })));
  });

  it('of another boot are marked, since their times mean nothing in this one', () => {
    save(store(), slot('p/1'));
    open[0]?.close();
    const db = new DatabaseSync(path('onejob.db'));
    db.exec("UPDATE slots SET boot = 'another'");
    db.close();
    expect(store().slots.all()).toEqual([{ slot: slot('p/1'), thisBoot: false }]);
  });

  it('of 0.1.0, whose end was two states, are read as one', () => {
    const ending = { agent: 'a', job: 'j', why: 'timeout', released: true, failure: null, due: 9 } as const;
    mkdirSync(path('.'), { recursive: true });
    const db = new DatabaseSync(path('onejob.db'));
    for (const statement of migrations.slice(0, 6).flat()) db.exec(statement);
    const write = db.prepare('INSERT INTO slots (key, boot, body) VALUES (?, ?, ?)');
    for (const [key, kind] of [
      ['p/1', 'stopping'],
      ['p/2', 'killing'],
    ] as const)
      write.run(key, '', JSON.stringify({ ...slot(key), agent: { kind, ...ending } }));
    db.exec('PRAGMA user_version = 6');
    db.close();
    const lanes = store().slots.all();
    expect(lanes.map((one) => one.slot.agent)).toEqual([
      { kind: 'ending', signal: 'TERM', ...ending },
      { kind: 'ending', signal: 'KILL', ...ending },
    ]);
  });

  it('that are invalid cause an error that names them', () => {
    save(store(), slot('p/1'));
    open[0]?.close();
    const db = new DatabaseSync(path('onejob.db'));
    db.exec(`UPDATE slots SET body = '{"key":1}'`);
    db.close();
    expect(() => store().slots.all()).toThrow(
      expect.objectContaining({ code: 'E_STATE_CORRUPT', message: expect.stringContaining('p/1') }),
    );
  });
});

describe('a transaction', () => {
  it('is all or nothing', () => {
    const one = store();
    const failing = () =>
      one.transaction({ durable: false }, () => {
        one.slots.save(slot('p/1'));
        throw new Error('half way');
      });
    expect(failing).toThrow('half way');
    expect(one.slots.all()).toEqual([]);
    expect(one.transaction({ durable: true }, () => 5)).toBe(5);
  });

  it('is not begun inside another', () => {
    const one = store();
    expect(() => one.transaction({ durable: false }, () => save(one, slot('p/1')))).toThrow(/inside another/);
    save(one, slot('p/2'));
    expect(one.slots.all()).toHaveLength(1);
  });

  it('outlives kill -9', async () => {
    const state = join(dir.path, 'state');
    const child = leader(
      state,
      "store.transaction({ durable: false }, () => store.history.made({ agent: 'a', pool: 'p', slot: 'p/1', name: 'n', madeAt: 5 }));",
    );
    await said(child, 'leading');
    child.kill('SIGKILL');
    await once(child, 'exit');
    expect(store().history.get('a')).toMatchObject({ slot: 'p/1', madeAt: 5 });
  });
});

describe('the owner', () => {
  it('is created once per installation', () => {
    const { owner } = store();
    open[0]?.close();
    expect(owner).toMatch(/^[0-9a-f]{12}$/);
    expect(store().owner).toBe(owner);
    expect(store(join(dir.path, 'other')).owner).not.toBe(owner);
  });
});

describe('the lead', () => {
  it('belongs to one manager at a time, also in this process', () => {
    const first = store();
    expect(() => store()).toThrow(`Another onejob (pid ${process.pid}) leads the state directory ${first.dir}.`);
    first.close();
    first.close();
    store();
  });

  it('stays with a stopped process and ends with a killed one', async () => {
    const child = leader(join(dir.path, 'state'), '');
    await said(child, 'leading');
    child.kill('SIGSTOP');
    const refusal = expect.objectContaining({ code: 'E_STATE_LED', message: expect.stringContaining(`pid ${child.pid}`) });
    const ended = once(child, 'exit');
    try {
      expect(() => store()).toThrow(refusal);
    } finally {
      child.kill('SIGKILL');
    }
    await ended;
    store();
  });

  it('stays while nothing in its process needs the store any more: no collected garbage gives it up', async () => {
    const child = leader(join(dir.path, 'state'), 'setTimeout(() => { globalThis.gc(); console.log("collected"); }, 50);');
    try {
      await said(child, 'collected');
      expect(() => store()).toThrow(expect.objectContaining({ code: 'E_STATE_LED' }));
    } finally {
      child.kill('SIGKILL');
    }
  });

  it('is not inherited by a child that outlives its manager', async () => {
    const child = leader(
      join(dir.path, 'state'),
      "const { spawn } = await import('node:child_process'); const kept = spawn('sleep', ['60'], { detached: true, stdio: 'inherit' }); console.log(`child ${kept.pid} `);",
    );
    const text = await said(child, 'leading');
    const grandchild = Number(/child (\d+)/.exec(text)?.[1]);
    child.kill('SIGKILL');
    await once(child, 'exit');
    try {
      store();
    } finally {
      process.kill(grandchild, 'SIGKILL');
    }
  });
});

describe('a database that is not right', () => {
  beforeEach(() => mkdirSync(join(dir.path, 'state'), { mode: 0o700 }));

  it.each([
    ['text', 'these are my notes\n'],
    ['a cut database', `SQLite format 3\0${'\x10\x00\x02\x02'.repeat(30)}`],
  ])('because it is %s is refused and left as it is', (_, content) => {
    writeFileSync(path('onejob.db'), content, 'latin1');
    expect(() => store()).toThrow(
      expect.objectContaining({ code: 'E_STATE_CORRUPT', hint: expect.stringContaining('Nothing was changed') }),
    );
    expect(readFileSync(path('onejob.db'), 'latin1')).toBe(content);
  });

  it('because of overwritten pages is an error when it is noticed, and never deleted', () => {
    const one = store();
    for (let i = 0; i < 200; i += 1) save(one, slot(`p/${i}`));
    one.close();
    const bytes = readFileSync(path('onejob.db'));
    bytes.fill(0xff, 4096);
    writeFileSync(path('onejob.db'), bytes);
    expect(() => store().slots.all()).toThrow(expect.objectContaining({ code: 'E_STATE_CORRUPT' }));
    expect(statSync(path('onejob.db')).size).toBe(bytes.length);
  });

  it('because a newer onejob wrote it is refused', () => {
    store().close();
    const db = new DatabaseSync(path('onejob.db'));
    db.exec('PRAGMA user_version = 99');
    db.close();
    expect(() => store()).toThrow(expect.objectContaining({ code: 'E_STATE_NEWER' }));
  });
});

describe.skipIf(lacks('mount', 'root'))('on a full disk', () => {
  it('refuses what it cannot write, keeps what it has, and continues once there is room', () => {
    const mount = join(dir.path, 'disk');
    mkdirSync(mount);
    expect(spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=1m', 'none', mount]).status).toBe(0);
    try {
      const one = store(join(mount, 'state'));
      save(one, slot('p/kept'));
      const filler = join(mount, 'filler');
      spawnSync('dd', ['if=/dev/zero', `of=${filler}`, 'bs=4k']);
      const big = slot('p/new', { devices: Array.from({ length: 2_000 }, (_, i) => `GPU-${i}`) });
      const full = expect.objectContaining({ code: 'E_STATE_FULL', retry: true, message: expect.stringContaining(one.dir) });
      expect(() => save(one, big)).toThrow(full);
      expect(() => save(one, big)).toThrow(full);
      expect(one.slots.all().map((stored) => stored.slot.key)).toEqual(['p/kept']);
      rmSync(filler);
      save(one, big);
      one.syncNow();
      expect(one.slots.all()).toHaveLength(2);
      one.close();
    } finally {
      spawnSync('umount', [mount]);
    }
  });
});

describe('history', () => {
  it('lists each agent once, newest first', () => {
    const one = store();
    one.transaction({ durable: false }, () => {
      for (const [at, agent] of ['a', 'b', 'c'].entries())
        one.history.made({ agent, pool: 'p', slot: 'p/1', name: 'n', madeAt: at });
      one.history.made({ agent: 'a', pool: 'q', slot: 'q/9', name: 'x', madeAt: 99 });
      one.history.released('a', 'j', 10);
      one.history.released('b', 'j', 20);
      one.history.ended('a', { kind: 'signal', signal: 'SIGKILL' }, 15);
      one.history.ended('a', { kind: 'code', code: 0 }, 16);
    });
    expect(one.history.ofSlot('p/1', 2).map((entry) => entry.agent)).toEqual(['c', 'b']);
    expect(one.history.ofJob('j', 9).map((entry) => entry.agent)).toEqual(['b', 'a']);
    expect(one.history.get('a')).toEqual({
      agent: 'a',
      pool: 'p',
      slot: 'p/1',
      name: 'n',
      job: 'j',
      madeAt: 0,
      releasedAt: 10,
      endedAt: 15,
      exit: { kind: 'signal', signal: 'SIGKILL' },
      devices: [],
      image: null,
      memory: null,
    });
    expect(one.history.endedBefore(16, 9)).toEqual(['a']);
    one.transaction({ durable: false }, () => one.history.remove('a'));
    expect(one.history.get('a')).toBeNull();
  });
});

describe('registrations', () => {
  it('go from intent to made to removed and never back', () => {
    const one = store();
    const { registrations } = one;
    const of = (agent: string) => ({ agent, service: 'azure', place: '7', name: `box-${agent}`, placeholder: false });
    one.transaction({ durable: false }, () => {
      registrations.intend(of('a'), 1);
      registrations.intend(of('b'), 2);
      registrations.made('a', '17', 3);
    });
    expect(registrations.open('azure')).toEqual([
      { ...of('a'), state: 'made', remote: '17', usedAt: 3 },
      { ...of('b'), state: 'intent', remote: null, usedAt: null },
    ]);
    one.transaction({ durable: false }, () => registrations.used('a', 9));
    expect(registrations.get('a')?.usedAt).toBe(9);
    one.transaction({ durable: false }, () => {
      registrations.removed('a', 4);
      registrations.made('a', '18', 5);
      registrations.intend(of('a'), 6);
    });
    expect(registrations.get('a')).toMatchObject({ state: 'removed', remote: '17' });
    expect(registrations.open('azure').map((entry) => entry.agent)).toEqual(['b']);
    one.transaction({ durable: false }, () => registrations.prune(100));
    expect(registrations.get('a')).toBeNull();
    one.transaction({ durable: false }, () => {
      registrations.made('b', '19', 7);
      registrations.intend({ ...of('b'), name: 'another' }, 8);
    });
    expect(registrations.get('b')).toEqual({ ...of('b'), name: 'another', state: 'intent', remote: null, usedAt: null });
  });
});

/** A process that opens the store, runs `more`, says "leading" and stays. */
function leader(state: string, more: string): ChildProcess {
  const module = JSON.stringify(new URL('./store.ts', import.meta.url).href);
  const program = `const { openStore } = await import(${module}); const store = openStore(${JSON.stringify(state)}); ${more} console.log('leading'); setInterval(() => {}, 1000);`;
  return spawn(process.execPath, ['--expose-gc', '--input-type=module', '-e', program], { stdio: ['ignore', 'pipe', 'inherit'] });
}

async function said(child: ChildProcess, what: string): Promise<string> {
  let text = '';
  for await (const bytes of child.stdout ?? []) {
    text += bytes;
    if (text.includes(what)) return text;
  }
  throw new Error(`said only: ${text}`);
}
