/** Why nothing can be begun: the token, the program, the broker, the service itself; and that it begins again by itself. */
import { getEventListeners } from 'node:events';
import { describe, expect, it } from 'vitest';
import { OnejobError } from '../../errors.ts';
import { heldAgent } from './testing-broker.ts';
import { openManager, testPool, trustedEnv } from './testing-manager.ts';

const unreadable = new OnejobError('E_SECRET', 'The file "/etc/onejob/token" cannot be read.', { hint: 'Make it.' });

it('holds nothing on a good day', async () => {
  await using one = openManager({ pools: [testPool(), testPool({ name: 'gpu' })] });
  one.broker.up();
  await one.watch();
  expect([...one.held]).toEqual([]);
  expect(one.of('hold').filter(({ reason }) => reason === null)).toHaveLength(2);
});

it('is only beginning until its broker and its program are there; what is wrong with them is a trouble at once', async () => {
  await using one = openManager();
  await one.watch();
  expect(one.of('hold')).toEqual([{ kind: 'hold', pool: 'ci', reason: 'the broker is being started', beginning: true }]);
  one.program = new OnejobError('E_AGENT_PACKAGE', 'There is no program at "/opt/agent".');
  one.broker.exit('ended with exit code 3');
  await one.pass(0);
  expect(one.of('hold').at(-1)?.reason).toContain('the broker ended with exit code 3');
  expect(one.of('hold').at(-1)).not.toHaveProperty('beginning');
});

describe('the token', () => {
  it('that cannot be read holds the pool, with the reason, until it can', async () => {
    await using one = openManager();
    one.broker.up();
    one.token = unreadable;
    await one.watch();
    expect(one.held.get('ci')).toContain('The file "/etc/onejob/token" cannot be read.');
    expect(one.broker.offers.at(-1)?.services).toEqual([expect.objectContaining({ name: 'bk', token: null })]);
    one.token = 'new-token';
    await one.pass(31_000);
    expect(one.held.get('ci')).toBeUndefined();
    expect(one.broker.offers.at(-1)?.services).toEqual([expect.objectContaining({ token: 'new-token' })]);
  });

  it('that changes on disk is used from then on', async () => {
    await using one = openManager();
    one.broker.up();
    await one.watch();
    one.token = 'rotated\n';
    await one.pass(31_000);
    expect(one.broker.offers.at(-1)?.services).toEqual([expect.objectContaining({ token: 'rotated' })]);
  });

  it('that stays the same is told once', async () => {
    await using one = openManager();
    one.broker.up();
    await one.watch();
    const before = one.broker.offers.length;
    await one.pass(600_000);
    expect(one.broker.offers.length).toBe(before);
  });

  it('is read for days without leaving anything behind', async () => {
    const signals: AbortSignal[] = [];
    const ready = async (signal: AbortSignal): Promise<void> => void signals.push(signal);
    await using one = openManager({ parts: { program: { folder: '/tools/at-1', ready } } });
    one.broker.up();
    await one.watch();
    const listeners = () => signals.map((signal) => getEventListeners(signal, 'abort').length);
    const before = listeners();
    await one.pass(3_600_000);
    expect(listeners()).toEqual(before);
  });
});

describe('the program', () => {
  it('that is missing holds the pool, also one that has agents, until it is there', async () => {
    await using one = openManager();
    one.broker.up();
    one.program = new OnejobError('E_AGENT_PACKAGE', 'There is no program at "/opt/agent".', { hint: 'Put it there.' });
    one.broker.put(heldAgent('a1'));
    await one.watch();
    expect(one.held.get('ci')).toContain('There is no program at "/opt/agent".');
    one.program = null;
    await one.pass(31_000);
    expect(one.held.get('ci')).toBeUndefined();
  });

  it('that is being looked for holds the pool, too', async () => {
    const looked = Promise.withResolvers<void>();
    await using one = openManager({ parts: { program: { folder: '/tools/at-1', ready: () => looked.promise } } });
    one.broker.up();
    await one.watch();
    expect(one.held.get('ci')).toBe('the agent is being looked for');
    looked.resolve();
    await one.pass(0);
    expect(one.held.get('ci')).toBeUndefined();
  });
});

describe('the broker', () => {
  it('that is away holds the pool, also one whose jobs run, until it is back', async () => {
    await using one = openManager();
    one.broker.up();
    one.broker.put(heldAgent('a1', { env: trustedEnv, phase: 'running', agent: 'agent1' }));
    await one.watch();
    one.broker.down();
    await one.pass(0);
    expect(one.held.get('ci')).toBe('the broker has ended, and is being started again');
    one.broker.up();
    await one.pass(3_000);
    expect(one.held.get('ci')).toBeUndefined();
  });
});

describe('the service', () => {
  const refused = { service: 'bk', kind: 'refused', why: 'Buildkite refuses the token.' } as const;
  const ok = { service: 'bk', kind: 'ok', why: null } as const;

  it('that refuses the token holds a pool without agents', async () => {
    await using one = openManager();
    one.broker.up();
    await one.watch();
    one.broker.health(refused);
    expect(one.held.get('ci')).toBe('Buildkite refuses the token. Start onejob again with it.');
    one.broker.health(ok);
    expect(one.held.get('ci')).toBeUndefined();
  });

  it('that does not answer lets pools go on that have an agent, and holds them once they have none', async () => {
    await using one = openManager({ pools: [testPool(), testPool({ name: 'gpu' })] });
    one.broker.up();
    await one.watch();
    one.broker.put(heldAgent('a1'));
    one.broker.put(heldAgent('g1', { pool: 'gpu', slot: 'gpu/1', phase: 'registering' }));
    one.broker.health({ service: 'bk', kind: 'away', why: 'Buildkite does not answer.' });
    expect([...one.held]).toEqual([['gpu', 'Buildkite does not answer.']]);
    one.broker.put(heldAgent('a1', { phase: 'ending' }));
    expect(one.held.get('ci')).toBe('Buildkite does not answer.');
    one.broker.put(heldAgent('a2'));
    expect(one.held.get('ci')).toBeUndefined();
  });

  it('is named at the slot that cannot have an agent, where the pool goes on without it', async () => {
    await using one = openManager({ pools: [testPool({ agents: 3 })] });
    const troubles = () => [1, 2, 3].map((n) => one.service.trouble?.(`ci/${n}`) ?? null);
    one.broker.up();
    await one.watch();
    one.broker.put(heldAgent('a1'));
    one.broker.put(heldAgent('a2', { slot: 'ci/2', phase: 'registering' }));
    expect(troubles()).toEqual([null, null, null]);
    one.broker.health(refused);
    expect(troubles()).toEqual([null, 'Buildkite refuses the token. Start onejob again with it.', null]);
    one.broker.health(ok);
    one.broker.put(heldAgent('a2', { slot: 'ci/2', phase: 'registering', problem: 'The name is taken.' }));
    expect(troubles()).toEqual([null, 'The name is taken.', null]);
    one.broker.put(heldAgent('a2', { slot: 'ci/2' }));
    expect(troubles()).toEqual([null, null, null]);
  });

  it('is named once, for the pool, where no slot of it has an agent', async () => {
    await using one = openManager();
    one.broker.up();
    await one.watch();
    one.broker.put(heldAgent('a1', { phase: 'registering', problem: 'Buildkite refuses the token.' }));
    one.broker.health(refused);
    expect(one.held.has('ci')).toBe(true);
    expect(one.service.trouble?.('ci/1')).toBeNull();
  });

  it('of another name is not ours', async () => {
    await using one = openManager();
    one.broker.up();
    await one.watch();
    one.broker.health({ ...refused, service: 'other' });
    expect([...one.held]).toEqual([]);
  });
});

it('says each reason once', async () => {
  await using one = openManager();
  one.broker.up();
  await one.watch();
  const before = one.events.length;
  for (let n = 0; n < 5; n++) one.broker.put(heldAgent('a1'));
  await one.pass(100_000);
  expect(one.events.length).toBe(before);
});

it('says nothing once nobody listens', async () => {
  await using one = openManager();
  one.broker.up();
  await one.watch();
  one.stop();
  const before = one.events.length;
  one.broker.put(heldAgent('a1', { env: trustedEnv }));
  one.broker.down();
  await one.pass(300_000);
  expect(one.events.length).toBe(before);
});

describe('agents that are given a job and never call in', () => {
  const handed = (id: string) => heldAgent(id, { phase: 'handed', agent: `a-${id}`, env: trustedEnv });

  it('hold their pool for longer each time, and the first that calls in makes it well', async () => {
    await using one = openManager();
    one.broker.up();
    await one.watch();
    for (const [n, wait] of [1_000, 2_000, 4_000].entries()) {
      one.broker.put(handed(`g${n}`));
      one.broker.put({ ...handed(`g${n}`), phase: 'ending' });
      await one.pass(wait - 100);
      expect(one.held.get('ci')).toContain('never called in');
      await one.pass(200);
      expect(one.held.get('ci')).toBeUndefined();
    }
    one.broker.put({ ...handed('g9'), phase: 'connected' });
    one.broker.put(handed('g10'));
    one.broker.put({ ...handed('g10'), phase: 'gone' });
    await one.pass(1_200);
    expect(one.held.get('ci')).toBeUndefined();
  });

  it('hold nothing when their job was cancelled', async () => {
    await using one = openManager();
    one.broker.up();
    await one.watch();
    one.broker.put(handed('g1'));
    one.broker.put({ ...handed('g1'), phase: 'ending', cancelled: true });
    await one.pass(100);
    expect(one.held.get('ci')).toBeUndefined();
  });
});
