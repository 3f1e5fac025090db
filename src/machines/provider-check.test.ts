/** `cloud check-provider` with programs in memory: a good one, and those with one mistake each. */
import { expect, test } from 'vitest';
import { commandConfig, commandWorld, ended } from '../../test/kit/command-cloud.ts';
import type { AcceptanceStep } from './acceptance-steps.ts';
import { checkProvider } from './provider-check.ts';

type Instead = NonNullable<NonNullable<Parameters<typeof commandWorld>[0]>['instead']>;

async function checked(instead: Instead = () => null, config = commandConfig, stop = new AbortController()) {
  const { clock, parts, run, calls } = commandWorld({ instead });
  const told: AcceptanceStep[] = [];
  const seen = {
    clock,
    waits: () => {},
    signal: stop.signal,
    ended: async (step: AcceptanceStep) => void told.push(step),
  };
  const steps = await checkProvider({ config, parts, run, ...seen });
  expect(told).toEqual(steps);
  return { steps, calls, failed: steps.filter(({ result }) => result === 'failed') };
}

test('a good one passes, and is asked for no machine', async () => {
  const { failed, steps, calls } = await checked();
  expect(failed).toEqual([]);
  expect(steps.map(({ step }) => step)).toContain('the end of a machine that does not exist');
  expect(steps[0]).toMatchObject({
    step: 'a verb that does not exist',
    evidence: 'Expected exit code 64 and no output; that came.',
  });
  expect(calls.filter(({ verb }) => verb === 'create')).toEqual([]);
});

test('one that ends no machine by itself is not asked for that', async () => {
  const { steps, calls } = await checked(() => null, { ...commandConfig, deathDate: 'manager-only' });
  expect(steps.map(({ step }) => step)).not.toContain('the end of a machine that does not exist');
  expect(calls.filter(({ verb }) => verb === 'end')).toEqual([]);
});

const mistakes: readonly (readonly [step: string, evidence: RegExp, instead: Instead])[] = [
  [
    'a verb that does not exist',
    /got exit code 0, and the output "\{\}"/,
    ({ verb }) => (verb === 'onejob-unknown' ? ended(0, '{}') : null),
  ],
  ['a request that is not JSON', /got it exited with 1\.$/, (_, input) => (input.endsWith('}') ? null : ended(1))],
  ['a request of another version', /got exit code 0/, ({ version }) => (version === 1000 ? ended(0) : null)],
  ['a removal without an id', /got exit code 0/, ({ verb, id }) => (verb === 'destroy' && id === undefined ? ended(0) : null)],
  [
    'the list of an owner who has nothing',
    /got an incomplete list: host b/,
    ({ verb }) => (verb === 'list' ? ended(0, '{"things":[],"unknown":["host b"]}') : null),
  ],
  [
    'a key that it does not know',
    /got Cannot list .* ended with 64/,
    (_, input) => (input.includes('x-onejob-unknown') ? ended(64) : null),
  ],
  [
    'the removal of a machine that does not exist',
    /got Cannot remove machine .* exited with 1/,
    ({ id }) => (id === 'onejob-0000000000000000' ? ended(1) : null),
  ],
  [
    'the console of a machine that does not exist',
    /got 5 characters/,
    ({ verb }) => (verb === 'console' ? ended(0, '{"text":"hello"}') : null),
  ],
  [
    'the end of a machine that does not exist',
    /got success/,
    ({ verb, expires }) => (verb === 'end' ? ended(0, JSON.stringify({ ends: expires })) : null),
  ],
];

test.each(mistakes)('a mistake in "%s" is told', async (step, evidence, instead) => {
  expect((await checked(instead)).failed).toContainEqual(
    expect.objectContaining({ step, evidence: expect.stringMatching(evidence) }),
  );
});

test('an interruption ends it with what it has tried', async () => {
  const stop = new AbortController();
  const { steps } = await checked(
    ({ verb }) => {
      if (verb === 'destroy') stop.abort();
      return null;
    },
    commandConfig,
    stop,
  );
  expect(steps.at(-1)).toMatchObject({
    step: 'the list of an owner who has nothing',
    result: 'failed',
    evidence: 'It was interrupted.',
  });
});
