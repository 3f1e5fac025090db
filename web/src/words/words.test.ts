import { expect, test } from 'vitest';
import * as daemon from '../../../src/contract/verdict.ts';
import { busySlot, device, ended, job, pool, slot, workingDay } from '../../test/world.ts';
import type { Job, Pool } from '../views.ts';
import { concerns } from './attention.ts';
import { deviceReason, named, namesOf } from './names.ts';
import { failuresText, standsOut, worstFirst } from './stands-out.ts';
import { clockText, memoryText, pageAddress, plain, rangeText } from './text.ts';
import { timeLine } from './time-line.ts';
import {
  endDetail,
  endReason,
  isHeld,
  isReady,
  jobName,
  jobState,
  limitsText,
  otherImages,
  poolCounts,
  poolProblems,
  poolsFor,
  resultText,
  slotState,
  verdictSentence,
  whenStarts,
  whenStartsShort,
  whyWaits,
  whyWaitsBriefly,
} from './words.ts';

const now = Date.now();
const minute = 60_000;

test.each([
  [0, 30_000, 'within a minute'],
  [30_000, 9 * minute, 'within 9 min'],
  [2 * minute, 9 * minute, 'in 2 to 9 min'],
  [2.9 * minute, 8.1 * minute, 'in 2 to 9 min'],
  [5 * minute, 5 * minute, 'in 5 min'],
  [60 * minute, 190 * minute, 'in 1 to 4 h'],
  [0, 0, 'at once'],
])('a start in %s to %s ms is said without promising more', (from, to, text) => expect(rangeText(from, to)).toBe(text));

test('the images that are counted together are known by the name that the daemon gives them', () => {
  expect(otherImages).toBe(daemon.otherImages);
});

test('foreign text cannot leave its line or turn its direction', () => {
  expect(plain('a\u001b[31m\nb\u202ec\u0000')).toBe('a [31m b\ufffdc ');
  expect(plain('<b>')).toBe('<b>');
  expect(jobName(job('1', { name: '\u0000\n' }))).toBe('1');
  expect(jobName(job('1', { name: 'x'.repeat(10_000) }))).toHaveLength(300);
});

test.each([
  ['https://ci.example/1', 'https://ci.example/1'],
  ['javascript:alert(1)', null],
  ['data:text/html,x', null],
  ['//evil', null],
  [null, null],
])('the link %s', (link, address) => expect(pageAddress(link)).toBe(address));

test('a verdict says nothing twice', () => {
  const cancelled = { kind: 'cancelled', why: 'the job was cancelled', evidence: [] } as const;
  expect(verdictSentence(job('1', { state: 'done', verdict: { ...cancelled, evidence: [] } }))).toBe('It was cancelled.');
  expect(verdictSentence(ended('1', 'code', 'the job exited with 3'))).toBe('It failed by its own code: the job exited with 3.');
});

test('times and sizes', () => {
  const noon = new Date(2026, 10, 26, 12, 3, 10).getTime();
  expect(clockText(noon, noon + 1_000)).toBe('12:03:10');
  expect(clockText(noon - 86_400_000, noon)).toBe('25 Nov, 12:03');
  expect(memoryText(620, 81_920)).toBe('0.6 / 80.0 GiB');
  expect(memoryText(null, null)).toBe('');
});

test('why a job waits: what the daemon says, else what its pool shows', () => {
  const why = (pools: Pool[], more = {}) => whyWaits(job('j', more), pools, now);
  const busy = pool('a', [busySlot('a/1', 'x', 0), busySlot('a/2', 'y', 0)]);
  expect(why([busy], { reason: 'Tried again, because its agent was lost.' })).toBe('Tried again, because its agent was lost');
  expect(why([busy])).toBe('both agents of pool a are busy');
  expect(why([pool('a', [...busy.slots, busySlot('a/3', 'z', 0)])])).toBe('all 3 agents of pool a are busy');
  expect(why([{ ...busy, paused: ['by hand'] }])).toBe('pool a is paused by hand');
  expect(why([{ ...busy, draining: true }])).toMatch(/^pool a drains/);
  const backoff = { failures: 3, retryIn: now + 20_000, reason: 'no such image', waitsFor: null };
  expect(why([{ ...busy, backoff }])).toBe('pool a failed to start agents 3 times, the next try is in 20s: no such image');
  const held = slot('a/3', {}, { held: 'GPU 3 is in quarantine' });
  expect(why([pool('a', [held])])).toBe('pool a has no device that can be used: GPU 3 is in quarantine');
  expect(why([pool('a', [busySlot('a/1', 'x', 0), held])])).toBe(
    'the agent of pool a is busy; 1 more cannot be used: GPU 3 is in quarantine',
  );
  expect(why([pool('a', [slot('a/1', {}, { note: 'pulls x:1, 40 %' })])])).toBe('its agent is being prepared: pulls x:1, 40 %');
  expect(why([pool('a', [slot('a/1')])], { state: 'waiting' })).toMatch(/has not given it/);
  expect(why([])).toBe('no pool may run it now');
  const pools = workingDay().status.pools;
  expect(poolsFor(job('j', { pool: '', service: 'azure' }), pools).map(({ name }) => name)).toEqual(['azure']);
});

test('what needs attention already is named in few words at the jobs that wait for it', () => {
  const brief = (of: Pool, reason: string | null) => whyWaitsBriefly(job('j', { reason }), [of], now);
  const backoff = {
    failures: 3,
    retryIn: now + 20_000,
    reason: 'no image "x:1" in the registry',
    waitsFor: 'image "x:1" on docker',
  };
  const failing = pool('a', [slot('a/1')], { backoff });
  expect(brief(failing, 'waits for image "x:1" on docker: no image "x:1" in the registry')).toBe(
    'the pool waits for image "x:1" on docker, the next try is in 20s',
  );
  expect(poolProblems(failing, now)).toMatchObject([
    { text: expect.stringContaining('no image "x:1"'), brief: expect.not.stringContaining('no image') },
  ]);
  const closed = pool('a', [slot('a/1')], { draining: true });
  expect(brief(closed, 'the pool drains')).toBe('the pool drains');
  expect(brief(closed, null)).toBe('the pool drains');
  // What only this job waits for is nowhere else.
  expect(brief(failing, 'it needs job k')).toBe('it needs job k');
  expect(brief(pool('a', [slot('a/1')]), 'the next agent is being prepared')).toBe('the next agent is being prepared');
  const stranded = job('j', {
    pool: 'old',
    reason: 'The own queue no longer has a pool called "old". Type "onejob move JOB --to POOL".',
  });
  expect(whyWaits(stranded, [], now)).toContain('Type "onejob move');
  expect(whyWaitsBriefly(stranded, [], now)).toBe('The own queue no longer has a pool called "old"');
});

test('a job has a place in line only where the line moves', () => {
  const first = job('j', { ahead: 0 });
  const backoff = { failures: 3, retryIn: now + 20_000, reason: 'no such image', waitsFor: null };
  expect(whenStarts(first, [pool('a', [])])).toBe('Next in line.');
  for (const stuck of [{ backoff }, { paused: ['by hand'] }, { draining: true }, { leaving: true }])
    expect(whenStarts(first, [pool('a', [], stuck)])).toBe('');
  expect(whenStarts(first, [])).toBe('');
  expect(whenStartsShort(first, [pool('a', [])])).toBe('next');
  expect(whenStartsShort(first, [])).toBe('');
});

test('when a job starts is said as far as it is known', () => {
  const open = [pool('a', [])];
  expect(whenStarts(job('j'), open)).toBe('');
  expect(whenStarts(job('j', { ahead: 0 }), open)).toBe('Next in line.');
  expect(whenStarts(job('j', { ahead: 2, startsIn: { from: 3 * minute, to: 11 * minute } }), open)).toBe(
    '2 jobs before it, starts in 3 to 11 min.',
  );
});

test('an ended job has the same words in all services, and says whose fault it was next to them', () => {
  const shown = (job: Job) => [jobState(job).word, jobState(job).tone, endReason(job)];
  expect(shown(ended('j', 'infrastructure', 'x'))).toEqual(['failed', 'bad', 'infrastructure: x']);
  expect(shown(ended('j', 'code', 'exit code 1'))).toEqual(['failed', 'warn', 'your code: exit code 1']);
  expect(shown(ended('j', 'passed', 'x', { verdict: null }))).toEqual(['passed', 'ok', 'exit code 0']);
  const azure = { result: { kind: 'reported', word: 'abandoned' }, outcome: 'lost' } as const;
  expect(shown(ended('j', 'unknown', 'its agent was lost', azure))).toEqual([
    'lost',
    'calm',
    'unknown: its agent was lost (abandoned)',
  ]);
  expect(shown(ended('j', 'unknown', 'x', { verdict: null, result: null, outcome: null }))).toEqual([
    'ended',
    'calm',
    'its CI service did not report a result',
  ]);
});

test('the page of a job shows its exit code and its limits', () => {
  expect(endDetail(ended('j', 'code', 'x'))).toBe('exit 1');
  expect(endDetail(ended('j', 'code', 'x', { result: { kind: 'oom' }, outcome: 'failed' }))).toBe('oom');
  expect(endDetail(ended('j', 'passed', 'x'))).toBe('');
  expect(endDetail(ended('j', 'passed', 'x', { result: { kind: 'reported', word: 'success' }, outcome: 'passed' }))).toBe(
    'success',
  );
  expect(limitsText(job('j'))).toBe('');
  expect(limitsText(job('j', { limits: { memory: null, cpus: null } }))).toBe('none');
  expect(limitsText(job('j', { limits: { memory: 64 * 2 ** 20, cpus: 2, timeout: 90 * minute } }))).toBe(
    '64 MiB of memory, 2 CPUs, 1h 30m of time',
  );
});

test('the numbers of a pool', () => {
  const held = slot('a/3', {}, { held: 'no' });
  expect(poolCounts(pool('a', [slot('a/1'), busySlot('a/2', 'x', 0), held]))).toEqual({ wanted: 3, ready: 1, busy: 1 });
  const none = { state: 'none', agent: null, since: null } as const;
  expect(isReady(slot('a/1', { state: 'idle', online: true }, { standby: none }))).toBe(true);
  expect(isReady(slot('a/1', {}, { standby: none }))).toBe(false);
  for (const closed of [{ paused: ['by hand'] }, { draining: true }, { leaving: true }])
    expect(poolCounts(pool('a', [slot('a/1'), busySlot('a/2', 'x', 0)], closed))).toMatchObject({ ready: 0, busy: 1 });
  expect(slotState(slot('a/1')).word).toBe('ready');
  expect(slotState(slot('a/1'), true).word).toBe('prepared');
  expect(slotState(busySlot('a/1', 'x', 0), true).word).toBe('busy');
});

test('what needs a person comes with the most serious first, each once', () => {
  const { status, devices } = workingDay();
  const host = { ...status, problems: ['the Engine does not answer'] };
  const found = concerns({ host, pools: status.pools, devices, names: namesOf(devices) }, now);
  expect(found.map(({ tone, subject }) => `${tone} ${subject}`)).toEqual([
    'bad Host:',
    'bad GPU 3',
    'bad Pool azure',
    'warn Pool gpu',
    'warn Pool release',
  ]);
  const [card] = devices;
  const parent = { ...(card ?? expect.fail()), state: 'quarantined', why: 'Xid 79' } as const;
  const part = { ...parent, uuid: 'MIG-1', kind: 'mig', parent: parent.uuid, profile: '1g.10gb' } as const;
  const names = namesOf([parent, part]);
  expect(concerns({ host: status, pools: [], devices: [parent, part], names }, now)).toHaveLength(1);
  expect(names.get('MIG-1')).toBe('GPU 0 / 1g.10gb');
  expect(namesOf([{ ...parent, why: null }, part], names)).toBe(names);
  expect(named(`errors on ${parent.uuid} and MIG-1`, names)).toBe('errors on GPU 0 and GPU 0 / 1g.10gb');
  const why = `${parent.uuid} is in quarantine: 2 errors on ${parent.uuid}.`;
  expect(deviceReason({ why }, names)).toBe('2 errors on GPU 0');
});

test('a pool that somebody closed comes with the command that opens it', () => {
  const { status } = workingDay();
  const hints = (...pools: Pool[]) =>
    concerns({ host: status, pools, devices: [], names: new Map() }, now).map(({ text, hint }) => [text, hint]);
  const held = pool('a', [], { paused: ['by hand', 'by the night shift', 'disk: 3 % free.'], draining: true });
  expect(hints(held)).toEqual([
    ['is paused by hand', 'Type "onejob resume a".'],
    ['is paused by the night shift', `Type "onejob resume a --reason 'the night shift'".`],
    ['starts nothing new: disk: 3 % free', null],
    [expect.stringContaining('drains'), 'Type "onejob resume a".'],
  ]);
  expect(hints(pool('a', [], { draining: true, leaving: true }))).toEqual([[expect.stringContaining('no longer'), null]]);
});

test('a new image that fails needs a person, one that is tried does not', () => {
  const { status } = workingDay();
  const about = { slot: 'a/1', image: 'image x:2', previous: 'image x:1', retryIn: null };
  const said = (failure: string | null, text: string) => {
    const tried = { ...pool('a', []), update: { ...about, failure, text } };
    return concerns({ host: { ...status, problems: [] }, pools: [tried], devices: [], names: new Map() }, now);
  };
  expect(said(null, 'a/1 tries the new image x:2 first')).toEqual([]);
  expect(said('no shell', 'the new image x:2 failed on a/1: no shell')).toMatchObject([
    { tone: 'warn', subject: 'Pool a:', text: 'the new image x:2 failed on a/1: no shell' },
  ]);
});

test('a card stands out by three times the share of the others, and not by chance', () => {
  const line = (value: string, jobs: number, infrastructure: number) => ({
    value,
    jobs,
    infrastructure,
    configuration: 0,
    passed: 0,
    cancelled: 0,
    code: 0,
    unknown: 0,
    waitMs: null,
    runMs: null,
    longestMs: 0,
  });
  expect([...standsOut([line('a', 50, 12), line('b', 60, 1), line('c', 60, 0)])]).toEqual(['a']);
  expect([...standsOut([line('a', 4, 2), line('b', 60, 0)])]).toEqual([]);
  expect([...standsOut([line('a', 60, 6), line('b', 60, 5)])]).toEqual([]);
  expect([...standsOut([line('a', 60, 60)])]).toEqual([]);
});

test('failures of a pool are counted as its history counts them, those of a device by what shows a bad card', () => {
  const line = {
    value: 'a',
    jobs: 8,
    passed: 3,
    cancelled: 1,
    code: 2,
    infrastructure: 1,
    configuration: 0,
    unknown: 1,
    waitMs: null,
    runMs: null,
    longestMs: 0,
  };
  expect(failuresText(line, 'pool')).toEqual(['4 of 8 failed (50%)', '1 infrastructure', '2 your code', '1 unknown']);
  expect(failuresText(line, 'device')).toEqual(['1 of 8 infrastructure (13%)', '4 failed in all', '2 your code', '1 unknown']);
  const fine = { ...line, passed: 8, cancelled: 0, code: 0, infrastructure: 0, unknown: 0 };
  const misfit = { ...line, unknown: 0, configuration: 1 };
  expect(failuresText(misfit, 'pool')).toEqual(['4 of 8 failed (50%)', '1 infrastructure', '1 configuration', '2 your code']);
  expect(failuresText(fine, 'image')).toEqual(['0 of 8 failed (0%)']);
  expect(failuresText(fine, 'device')).toEqual(['0 of 8 infrastructure (0%)']);
  const idle = { ...line, value: 'b', infrastructure: 0, code: 5, unknown: 0 };
  expect([line, idle].toSorted(worstFirst('pool')).map(({ value }) => value)).toEqual(['b', 'a']);
  expect([idle, line].toSorted(worstFirst('device')).map(({ value }) => value)).toEqual(['a', 'b']);
});

test('the times of a job, with what is not known left open', () => {
  const one = ended('j', 'passed', 'x', { submittedAt: 1_000, startedAt: 3_000, endedAt: 9_000, agent: 'a-1' });
  const proof = { device: device(0).uuid, slot: 'a/1', agent: 'a-1', verdict: 'clean', evidence: {}, took: 300, at: 9_400 };
  expect(timeLine(one, [proof]).map(({ name, at, after }) => [name, at, after])).toEqual([
    ['Queued', 1_000, null],
    ['Released', 3_000, 2_000],
    ['Ended', 9_000, 6_000],
    ['Proved', 9_400, 400],
  ]);
  expect(timeLine(job('j', { submittedAt: 1_000 }), []).map(({ at }) => at)).toEqual([1_000, null, null]);
  const runs = timeLine(job('j', { state: 'running', submittedAt: 1_000, startedAt: 3_000 }), []);
  expect(runs.map(({ name, since }) => [name, since])).toEqual([
    ['Queued', null],
    ['Released', null],
    ['Ended', 3_000],
  ]);
  expect(timeLine(one, [proof]).every(({ since }) => since === null)).toBe(true);
});

test('a state of a newer daemon is shown by its own name', () => {
  const newer = 'thawing\u0000' as never;
  const said = { word: 'thawing ', tone: 'calm' };
  expect(jobState(job('1', { state: newer }))).toEqual(said);
  expect(slotState(slot('gpu/1', { state: newer }))).toEqual(said);
  expect(resultText(job('1', { result: { kind: newer } }))).toBe('thawing ');
});

test('files are held until their time is over, or somebody ends that', () => {
  const failed = ended('1', 'code', 'so', { held: { until: now + 1 } });
  expect([isHeld(failed, now), isHeld(failed, now + 1), isHeld({ ...failed, held: null }, now), isHeld(job('2'), now)]).toEqual([
    true,
    false,
    false,
    false,
  ]);
});
