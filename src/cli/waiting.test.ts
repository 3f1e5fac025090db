import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import type { Client } from '../api/client.ts';
import type { JobView } from '../contract/schema.ts';
import { watchQueue } from './run.ts';
import type { Session } from './session.ts';

const job: JobView = {
  id: 'aa',
  service: 'own',
  pool: 'default',
  command: ['true'],
  about: null,
  state: 'queued',
  priority: 0,
  attempt: 0,
  agent: null,
  result: null,
  reason: null,
  cold: false,
  artifacts: [],
  submittedAt: 0,
  startedAt: null,
  endedAt: null,
};

let asked: string[];
let seen: (string | null)[];
let answer: JobView;
let stop: () => void;

beforeEach(() => {
  vi.useFakeTimers();
  [asked, seen, answer] = [[], [], { ...job, ahead: 3 }];
  const output = {
    showsProgress: true,
    progress: (line: string | null) => seen.push(line),
    say: (line: string) => seen.push(line),
  };
  // What else it might ask the daemon for is not there, so asking fails, and nothing is shown.
  const client = {
    job: async (id: string) => {
      asked.push(id);
      return answer;
    },
  } as unknown as Client;
  stop = watchQueue({ output } as unknown as Session, () => client, 'aa');
});
afterEach(() => {
  stop();
  vi.useRealTimers();
});

it('shows the place in the queue by asking for this one job alone', async () => {
  await vi.advanceTimersByTimeAsync(1_000);
  answer = { ...job, ahead: 0, reason: 'all agents are busy' };
  await vi.advanceTimersByTimeAsync(2_000);
  expect(seen).toEqual([
    'job aa is waiting in pool default, 3 before it',
    'job aa is waiting in pool default, next in line: all agents are busy',
  ]);
  expect(asked).toEqual(['aa', 'aa']);
});

it('looks less and less often, at least every five seconds, and stops when told to', async () => {
  await vi.advanceTimersByTimeAsync(60_000);
  expect(asked.length).toBeGreaterThanOrEqual(12);
  expect(asked.length).toBeLessThanOrEqual(18);
  stop();
  asked.length = 0;
  await vi.advanceTimersByTimeAsync(60_000);
  expect(asked).toEqual([]);
  expect(seen.at(-1)).toBeNull();
});
