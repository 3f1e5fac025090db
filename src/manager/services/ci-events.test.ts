import { expect, it } from 'vitest';
import type { Backoff } from '../../core/backoff.ts';
import type { Slot, SlotEvent } from '../../core/slot.ts';
import type { CiEvent, CiService } from '../../ports/ci-service.ts';
import { Pause } from '../loop/pause.ts';
import type { Reconciler } from '../loop/reconciler.ts';
import { followServices, slotFacts } from './ci-events.ts';

const settled = () => new Promise<void>((resolve) => setImmediate(resolve));

/** A loop with one slot that has agent a1, and a service that says what it is told to say. */
function open(words: () => Promise<string> = async () => '') {
  const emitters: ((event: CiEvent) => void)[] = [];
  const observe = (to: (event: CiEvent) => void): void => void emitters.push(to);
  const service = { observe } as unknown as CiService;
  const other = { observe } as unknown as CiService;
  const posted: SlotEvent[] = [];
  const lines: string[] = [];
  const done: string[] = [];
  const pool = {
    config: { name: 'ci' },
    pause: new Pause(),
    backoff: null as Backoff | null,
    serviceOf: () => service,
    limitOf: () => 7_000,
  };
  const slot = { key: 'ci/1', grace: 5_000, agent: { kind: 'idle', agent: 'a1', online: false, since: 40 } } as unknown as Slot;
  const reconciler = {
    pools: [pool],
    slotOf: (agent: string) => (agent === 'a1' || agent === 'standby' ? slot : undefined),
    slot: () => slot,
    poolOf: () => pool,
    post: (_: string, event: SlotEvent) => void posted.push(event),
    offer: (name: string) => void done.push(`offer ${name}`),
    replanAll: () => void done.push('replan'),
  } as unknown as Reconciler;
  const log = { info: (text: string) => void lines.push(text), warn: (text: string) => void lines.push(text), error: () => {} };
  const demanded = (name: string) => void done.push(`demanded ${name}`);
  const clock = { now: () => 0, wall: () => 0, after: () => () => {} };
  const away = new Map<string, string | null>([['burst.gpu', null]]);
  followServices([service, other], { reconciler, clock, log, demanded, away, outputTail: words }, new AbortController().signal);
  const [emit = () => {}, emitOther = () => {}] = emitters;
  return { emit, emitOther, posted, lines, done, pool, reconciler, away };
}
const failure = { code: 'E_AGENT_SILENT' as const, message: 'It kept silent.', retry: true };

it('passes on events of known agents only', () => {
  const { emit, posted } = open();
  emit({ kind: 'online', agent: 'a1' });
  emit({ kind: 'jobSeen', agent: 'a1', job: 'azure-1' });
  emit({ kind: 'cancel', agent: 'a1', job: 'azure-1', grace: null });
  emit({ kind: 'online', agent: 'stranger' });
  emit({ kind: 'silent', agent: 'stranger', failure });
  expect(posted).toEqual([
    { kind: 'online', agent: 'a1' },
    { kind: 'jobSeen', agent: 'a1', job: 'azure-1', limit: 7_000 },
    { kind: 'stop', agent: 'a1', why: 'cancelled', grace: 5_000 },
  ]);
});

it('accepts events of an agent only from its own service, even if another one sees it', () => {
  const { emitOther, posted } = open();
  emitOther({ kind: 'jobSeen', agent: 'a1', job: 'other-1' });
  expect(posted).toEqual([]);
});

it('keeps a back-off that is unrelated to the service', () => {
  const { emit, pool } = open();
  pool.backoff = { failures: 1, until: 0, stage: 'release', last: { code: 'E_AGENT_SILENT', message: '', retry: true } };
  emit({ kind: 'hold', pool: 'ci', reason: 'refused' });
  emit({ kind: 'hold', pool: 'ci', reason: null });
  expect(pool.backoff).not.toBeNull();
});

it.each([
  ['its last words', async () => 'no route to host', 'It kept silent. Its last output was:\nno route to host'],
  ['without them when there are none', async () => '', 'It kept silent.'],
  ['without them when they cannot be read', () => Promise.reject(new Error('disk')), 'It kept silent.'],
])('says of a silent agent why it is given up, with %s', async (_, words, message) => {
  const { emit, posted } = open(words);
  emit({ kind: 'silent', agent: 'a1', failure });
  await settled();
  expect(posted).toEqual([{ kind: 'releaseFailed', agent: 'a1', failure: { ...failure, message }, countsAgainst: 'pool' }]);
});

it('holds a pool with one reason at a time, logs each once, and then tries failed registrations at once', () => {
  const { emit, pool, lines, done } = open();
  const backoff = { failures: 1, until: 0, stage: 'release', last: { code: 'E_CI_DENIED', message: '', retry: false } } as const;
  pool.backoff = backoff;
  emit({ kind: 'hold', pool: 'ci', reason: 'refused' });
  emit({ kind: 'hold', pool: 'ci', reason: 'refused' });
  expect([pool.pause.details, lines, pool.backoff]).toEqual([['refused'], ['pool waits for its CI service'], backoff]);
  emit({ kind: 'hold', pool: 'ci', reason: null });
  emit({ kind: 'hold', pool: 'ci', reason: null });
  emit({ kind: 'hold', pool: 'of nobody', reason: 'refused' });
  expect([pool.pause.any, pool.backoff, lines.at(-1)]).toEqual([false, null, 'CI service is back']);
  expect(done).toEqual(['replan', 'replan']);
});

it('keeps why a service cannot serve a pool of machines, and logs it once', () => {
  const { emit, lines, done, away } = open();
  emit({ kind: 'hold', pool: 'burst.gpu', reason: 'refused' });
  emit({ kind: 'hold', pool: 'burst.gpu', reason: 'refused' });
  expect([[...away], lines]).toEqual([[['burst.gpu', 'refused']], ['pool waits for its CI service']]);
  emit({ kind: 'hold', pool: 'burst.gpu', reason: null });
  emit({ kind: 'hold', pool: 'of nobody', reason: 'refused' });
  expect([[...away], lines.slice(1), done]).toEqual([[['burst.gpu', null]], ['CI service is back'], []]);
});

it('holds a pool at once while its service is starting, without a warning', () => {
  const { emit, pool, lines } = open();
  emit({ kind: 'hold', pool: 'ci', reason: 'looking for the agent', beginning: true });
  expect([pool.pause.details, lines]).toEqual([['looking for the agent'], []]);
  emit({ kind: 'hold', pool: 'ci', reason: null });
  expect([pool.pause.any, lines]).toEqual([false, []]);
});

it('does not release a person’s pause', () => {
  const { emit, pool } = open();
  pool.pause.hold('alice');
  emit({ kind: 'hold', pool: 'ci', reason: 'refused' });
  emit({ kind: 'hold', pool: 'ci', reason: null });
  expect(pool.pause.details).toEqual(['alice']);
});

it('offers waiting jobs', () => {
  const { emit, done } = open();
  emit({ kind: 'waiting', pool: 'ci' });
  expect(done).toEqual(['demanded ci', 'offer ci']);
});

it('plans all slots of a pool that borrows devices, when the number of its waiting jobs may have changed', () => {
  const { emit, done, pool } = open();
  Object.assign(pool, { borrows: true });
  emit({ kind: 'waiting', pool: 'ci' });
  expect(done).toEqual(['demanded ci', 'replan']);
});

it('tells services where an agent is, and how long it has been silent', () => {
  const { reconciler } = open();
  const clock = { now: () => 100, wall: () => 0, after: () => () => {} };
  const facts = slotFacts(() => reconciler, clock);
  expect([facts.poolOf('a1'), facts.poolOf('stranger')]).toEqual(['ci', null]);
  expect([facts.isBusy('a1'), facts.isBusy('standby'), facts.isBusy('stranger')]).toEqual([false, false, false]);
  expect([facts.silentFor('a1'), facts.silentFor('standby'), facts.silentFor('stranger')]).toEqual([60, null, null]);
});
