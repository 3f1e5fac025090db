import { expect, test } from 'vitest';
import type { Job } from '../views.ts';
import { countsText, entriesOf, indicesText, queuesOf } from './queue.ts';

const job = (id: string, more: Partial<Job> = {}): Job =>
  ({ id, pool: 'a', service: 'own', state: 'queued', reason: null, result: null, ...more }) as Job;
const member = (index: number, more: Partial<Job> = {}): Job => job(`m${index}`, { array: { id: 'array', index }, ...more });

test('jobs of an array are one entry, in the order of their indices', () => {
  const entries = entriesOf([job('x'), member(3), job('y'), member(1)]);
  expect(entries.map(({ jobs }) => jobs.map(({ id }) => id))).toEqual([['x'], ['m1', 'm3'], ['y']]);
});

test('jobs that wait in one pool for one reason are one queue', () => {
  const queues = queuesOf([job('x'), job('y', { pool: 'b' }), job('z'), job('w', { reason: 'waits for x' })]);
  expect(queues.map(({ jobs }) => jobs.map(({ id }) => id))).toEqual([['x', 'z'], ['y'], ['w']]);
});

test('an array says how many of its jobs stand how', () => {
  const passed = { state: 'done', outcome: 'passed', verdict: { kind: 'passed', why: '', evidence: [] } } as const;
  const failed = { state: 'done', outcome: 'failed', verdict: { kind: 'infrastructure', why: '', evidence: [] } } as const;
  const jobs = [member(0, passed), member(1, failed), member(2, { state: 'running' }), member(3), member(9)];
  expect(countsText(jobs)).toBe('1 passed, 1 failed, 1 running, 2 wait');
  expect(indicesText(jobs)).toBe('[0-9]');
  expect(indicesText([member(4)])).toBe('[4]');
});
