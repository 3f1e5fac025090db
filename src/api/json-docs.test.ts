/** docs/json.md names what programs are promised: every key of the bodies that commands print with `--json`. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { jobResult } from '../contract/job.ts';
import { errorView, findingView, forgottenView, jobView, planLine, poolView, slotView, statusView } from '../contract/schema.ts';

const page = readFileSync(join(import.meta.dirname, '..', '..', 'docs', 'json.md'), 'utf8');
const named = new Set([...page.matchAll(/[`"]([A-Za-z]+)[`"]/g)].map(([, word]) => word));

test.each([
  ['a job', jobView.shape],
  ['what the service says of it', jobView.shape.about.unwrap().shape],
  ['the status', statusView.shape],
  ['a pool', poolView.shape],
  ['a slot', slotView.shape],
  ['the standby of a slot', slotView.shape.standby.shape],
  ['the agent of a slot', slotView.shape.agent.shape],
  ['a line of the plan', planLine.shape],
  ['a finding', findingView.shape],
  ['what was forgotten', forgottenView.shape],
  ['an error', errorView.shape],
])('every key of %s is on the page', (_, shape) => {
  expect(Object.keys(shape).filter((key) => !named.has(key))).toEqual([]);
});

test('every kind of result, and every state of a job and of an agent', () => {
  const words = [
    ...jobResult.options.map((option) => option.shape.kind.value),
    ...jobView.shape.state.options,
    ...slotView.shape.agent.shape.state.options,
    ...slotView.shape.standby.shape.state.options,
  ];
  expect(words.filter((word) => !named.has(word))).toEqual([]);
});
