import { describe, expect, test } from 'vitest';
import { type AgentLane, emptySlot, type Slot } from '../../core/slot.ts';
import { type CachePlace, hasEnded, isIdle } from './cache-places.ts';

const place = (changes: Partial<CachePlace> = {}): CachePlace => ({
  pool: 'gpu',
  agent: 'gpu.1',
  repository: null,
  cache: 'depot',
  path: '/caches/x',
  ...changes,
});
const slot = (key: string, changes: Partial<Slot> = {}): Slot => ({
  ...emptySlot({ key, runtime: 'docker', grace: 0 }),
  ...changes,
});
const busy: AgentLane = { kind: 'busy', agent: 'a1', job: 'j', since: 0, due: null };
const standby: Slot['standby'] = { kind: 'standby', agent: 's1', reserved: null, fingerprint: 'f', since: 0 };
const nameOf = (key: string) => key.replace('/', '.');
const idle = (one: CachePlace, ...slots: Slot[]) => isIdle(one, slots, nameOf);

describe('a cache is idle', () => {
  test.each<[string, AgentLane, boolean]>([
    ['without an agent', { kind: 'free' }, true],
    ['while its devices are looked at', { kind: 'proving', agent: 'a1', since: 0 }, true],
    [
      'not while an agent is released',
      { kind: 'releasing', agent: 'a1', job: 'j', limit: null, fingerprint: 'f', since: 0 },
      false,
    ],
    ['not while one works', busy, false],
  ])('%s', (_, agent, expected) => {
    expect(idle(place(), slot('gpu/1', { agent, standby }), slot('gpu/2', { agent: busy }))).toBe(expected);
  });

  test('of untrusted jobs while no agent of its pool works', () => {
    const untrusted = place({ agent: null, repository: '0a1b' });
    expect(idle(untrusted, slot('gpu/1', { standby }), slot('cpu/1', { agent: busy }))).toBe(true);
    expect(idle(untrusted, slot('gpu/1'), slot('gpu/2', { agent: busy }))).toBe(false);
  });

  test('of no slot that is there once its pool is empty', () => {
    const gone = place({ agent: 'gpu.9' });
    expect(idle(gone)).toBe(true);
    expect(idle(gone, slot('gpu/1', { standby }))).toBe(false);
    expect(idle(gone, slot('gpu/1', { leaving: [{ agent: 'a1', job: null, exit: null }] }))).toBe(false);
    expect(idle(gone, slot('gpu/1'), slot('cpu/1', { agent: busy }))).toBe(true);
  });
});

describe('an agent has ended', () => {
  const releasing = (agent: string): AgentLane => ({ kind: 'releasing', agent, job: 'j', limit: null, fingerprint: 'f', since: 0 });
  const free: AgentLane = { kind: 'free' };
  test.each<[string, AgentLane, AgentLane, boolean]>([
    ['when its slot is free', busy, free, true],
    ['when its devices are looked at', busy, { kind: 'proving', agent: 'a1', since: 0 }, true],
    ['when the next one follows at once', busy, releasing('a2'), true],
    ['not when it continues', releasing('a1'), busy, false],
    ['not when one begins', free, releasing('a1'), false],
    ['not a second time', { kind: 'proving', agent: 'a1', since: 0 }, releasing('a2'), false],
  ])('%s', (_, before, after, expected) => {
    expect(hasEnded(slot('gpu/1', { agent: before }), slot('gpu/1', { agent: after }))).toBe(expected);
  });
});
