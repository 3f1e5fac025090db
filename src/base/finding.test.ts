import { expect, test } from 'vitest';
import { OnejobError } from './errors.ts';
import { fine, found, problem } from './finding.ts';

const never = new AbortController().signal;

test('a look that fails is a finding of its own, so that others are told all the same', async () => {
  const all = [fine('docker', 'It answers.')];
  expect(await found('docker', Promise.resolve(all), never)).toBe(all);
  const failing = Promise.reject(new OnejobError('E_ENGINE_UNREACHABLE', 'It is away.', { hint: 'Start it.' }));
  expect(await found('docker', failing, never)).toEqual([problem('docker', 'It is away.', 'Start it.')]);
});

test('one that was stopped makes no finding', async () => {
  const signal = AbortSignal.abort(new Error('stopped'));
  await expect(found('docker', Promise.reject(new Error('other')), signal)).rejects.toThrow('stopped');
});
