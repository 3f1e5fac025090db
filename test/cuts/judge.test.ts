import { expect, test } from 'vitest';
import type { JobView } from '../../src/contract/schema.ts';
import { judge, type Look, type Seen, type Story } from './judge.ts';

const job = (id: string, name: string, result: JobView['result'], state: JobView['state'] = 'done') =>
  ({ id, name, pool: 'build', result, state }) as JobView;
const passed = { kind: 'code', code: 0 } as const;
const lost = { kind: 'lost', reason: 'power' } as const;

const look = (more: Partial<Look> = {}): Look => ({
  restless: null,
  jobs: [job('1', 'a', passed)],
  things: [{ kind: 'container', id: 'c1', detail: 'a standby' }],
  blind: [],
  integrity: 'ok',
  restarts: 0,
  disk: [],
  ...more,
});
const story = (more: Partial<Story> = {}): Story => ({
  told: [
    { accepted: 'a', pool: 'build', id: '1', expected: 0 },
    { told: '1', result: passed },
    { ended: 'a', pool: 'build', code: 0, expected: 0 },
  ],
  services: [],
  interruptions: 1,
  agents: { build: 1 },
  evidence: 'start a\nend a\n',
  before: look(),
  ...more,
});
const service = (more: Partial<Seen>): Story =>
  story({ services: [{ token: 'b', pool: 'ci', end: 'lost', expected: 0, ...more }] });

test('nothing is wrong when each job ended as it was told', () => {
  expect(judge(story(), look())).toEqual([]);
});

test('a job whose script began may be lost, and so may one whose script did not: it had been released', () => {
  const told = story().told.slice(0, 1);
  const gone = look({ jobs: [job('1', 'a', lost)] });
  expect(judge(story({ told, evidence: 'start a\n' }), gone)).toEqual([]);
  expect(judge(story({ told, evidence: '' }), gone)).toEqual([]);
});

const wrong: readonly (readonly [string, Story, Look])[] = [
  ['The script of a ran 2 times.', story({ evidence: 'start a\nstart a\nend a\n' }), look()],
  ['The script of x ran, and no job of that name is listed.', story({ evidence: 'start a\nend a\nstart x\n' }), look()],
  ['1 is listed 2 times.', story(), look({ jobs: [job('1', 'a', passed), job('1', 'a', passed)] })],
  ['a (1) was accepted and is not listed.', story({ told: story().told.slice(0, 1), evidence: '' }), look({ jobs: [] })],
  ['a has no end.', story({ told: [] }), look({ jobs: [job('1', 'a', null, 'queued')] })],
  ['a ended with "signal".', story({ told: [] }), look({ jobs: [job('1', 'a', { kind: 'signal', signal: 'KILL' })] })],
  [
    'a ended with code 1 instead of 0.',
    story({ told: story().told.slice(0, 1) }),
    look({ jobs: [job('1', 'a', { kind: 'code', code: 1 })] }),
  ],
  ['a has the code 0, and its script never began.', story({ evidence: '' }), look()],
  ['a has the code 0, and its script did not reach its end.', story({ evidence: 'start a\n' }), look()],
  [
    '2 jobs of build are lost: 1 interruptions cannot lose more than 1.',
    story({ told: [] }),
    look({ jobs: [job('1', 'a', lost), job('2', 'b', lost)] }),
  ],
  [
    'The result of 1 was {"kind":"code","code":0}, and is {"kind":"lost","reason":"power"}.',
    story({ told: story().told.slice(1, 2) }),
    look({ jobs: [job('1', 'a', lost)] }),
  ],
  [
    'A client saw a end with code 0, and now its result is {"kind":"lost","reason":"power"}.',
    story({ told: story().told.slice(2) }),
    look({ jobs: [job('1', 'a', lost)] }),
  ],
  ['A client saw a end with code 3 instead of 0.', story({ told: [{ ended: 'a', pool: 'build', code: 3, expected: 0 }] }), look()],
  [
    'There are 2 of the kind container instead of 1: c1 (a standby), c2 (no owner).',
    story(),
    look({ things: [...look().things, { kind: 'container', id: 'c2', detail: 'no owner' }] }),
  ],
  ['The database is damaged: page 3.', story(), look({ integrity: 'page 3' })],
  ['systemd has started the service 1 times again since the boot.', story(), look({ restarts: 1 })],
  ['The host does not come to rest: build backs off.', story(), look({ restless: 'build backs off' })],
  ['The kernel says: EXT4-fs error.', story(), look({ disk: ['EXT4-fs error'] })],
  ['The census did not look.', story(), look({ blind: ['did not look'] })],
  ['b has no end.', service({ end: 'open' }), look()],
  ['b ended with code 1 instead of 0.', service({ end: 1 }), look()],
  ['1 jobs of ci are lost: 1 interruptions cannot lose more than 0.', service({}), look()],
];

test.each(wrong)('%s', (sentence, seen, found) => {
  expect(judge(seen, found)).toContain(sentence);
});

test('who waits at a terminal may cancel a job, and nobody else', () => {
  const cancelled = (name: string) =>
    judge(story({ told: [], evidence: '' }), look({ jobs: [job('1', name, { kind: 'cancelled' })] }));
  expect(cancelled('a-person-1')).toEqual([]);
  expect(cancelled('a')).toEqual(['a ended with "cancelled".']);
});
