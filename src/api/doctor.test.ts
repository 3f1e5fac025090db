/** Who makes the doctor look, and who gets what it found before. */
import { expect, test } from 'vitest';
import { handClock } from '../../test/kit/core.ts';
import type { FindingView } from '../contract/schema.ts';
import { createDoctor } from './doctor.ts';

function scene() {
  const clock = handClock();
  const looks: { readonly signal: AbortSignal; readonly done: PromiseWithResolvers<FindingView[]> }[] = [];
  const doctor = createDoctor((signal) => {
    const done = Promise.withResolvers<FindingView[]>();
    looks.push({ signal, done });
    return done.promise;
  }, clock);
  return { clock, looks, doctor, signal: new AbortController().signal };
}
const found: FindingView[] = [{ level: 'ok', subject: 'state', message: 'writable', hint: null }];

test('those who ask at the same time get one result', async () => {
  const { looks, doctor, signal } = scene();
  const asked = [doctor.ask('operator', signal), doctor.ask('read', signal), doctor.ask('socket', signal)];
  looks[0]?.done.resolve(found);
  expect(await Promise.all(asked)).toEqual([found, found, found]);
  expect(looks).toHaveLength(1);
});

test('a login that may read gets the last result for a minute; operators and the socket have it look', async () => {
  const { looks, doctor, signal, clock } = scene();
  const first = doctor.ask('socket', signal);
  looks[0]?.done.resolve(found);
  await first;
  for (let at = 0; at < 10; at++) expect(await doctor.ask('read', signal)).toBe(found);
  expect(looks).toHaveLength(1);
  for (const kind of ['operator', 'socket'] as const) {
    const asked = doctor.ask(kind, signal);
    looks.at(-1)?.done.resolve([]);
    expect(await asked).toEqual([]);
  }
  expect(looks).toHaveLength(3);
  clock.advance(60_000);
  void doctor.ask('read', signal);
  expect(looks).toHaveLength(4);
});

test('those who leave start nothing again', async () => {
  const { looks, doctor } = scene();
  for (let at = 0; at < 5; at++) {
    const gone = new AbortController();
    const asked = doctor.ask('read', gone.signal);
    gone.abort(new Error('gone'));
    await expect(asked).rejects.toThrow('gone');
  }
  expect(looks).toHaveLength(1);
  expect(looks[0]?.signal.aborted).toBe(false);
  doctor.close();
  expect(looks[0]?.signal.aborted).toBe(true);
});

test('a look that failed is not kept', async () => {
  const { looks, doctor, signal } = scene();
  const first = doctor.ask('read', signal);
  looks[0]?.done.reject(new Error('no engine'));
  await expect(first).rejects.toThrow('no engine');
  void doctor.ask('read', signal);
  expect(looks).toHaveLength(2);
});
