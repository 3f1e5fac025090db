import { expect, test } from 'vitest';
import type { Log } from '../../base/log.ts';
import type { Slot } from '../../core/slot.ts';
import { tellStop } from './shutdown.ts';

const slot = (job: string | null, grace = 35_000) =>
  ({ key: 'p/1', grace, agent: { kind: 'busy', agent: 'a', job } }) as unknown as Slot;
const free = { key: 'p/2', grace: 99_000, agent: { kind: 'free' } } as unknown as Slot;

function told(slots: readonly Slot[], how: 'end' | 'drain' | 'leave', first = true): string[] {
  const lines: string[] = [];
  const say = (event: string, fields: object = {}) => void lines.push(`${event} ${JSON.stringify(fields)}`);
  const log: Log = { info: say, warn: say, error: say };
  tellStop(slots, how, first, log);
  return lines;
}

test('Ctrl-C logs how many jobs end, how long that may take, and what a second one does', () => {
  expect(told([slot('j1'), slot('j2', 60_000), free], 'end')).toEqual([
    'ending running jobs {"jobs":2,"within":"1m","hint":"a second Ctrl-C kills them"}',
  ]);
  expect(told([slot('j1')], 'drain')).toEqual(['waiting for running jobs {"jobs":1,"hint":"a second Ctrl-C kills them"}']);
  expect(told([slot('j1')], 'leave')[0]).toContain('the next daemon takes them over');
});

test('nothing is logged without a running job, nor a second time', () => {
  expect(told([slot(null), free], 'end')).toEqual([]);
  expect(told([slot('j1')], 'end', false)).toEqual([]);
});
