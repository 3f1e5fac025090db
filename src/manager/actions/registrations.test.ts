import { expect, it } from 'vitest';
import type { Registration } from '../../ports/ci-service.ts';
import { Registrations } from './registrations.ts';

const made = (id: string): Registration => ({ id, script: '', files: null });
const patient = new AbortController().signal;

it('registers ahead, once, what is taken later', async () => {
  const held = new Registrations();
  let calls = 0;
  const register = async () => made(String(++calls));
  held.ahead('a1', register);
  held.ahead('a1', register);
  expect(await held.take('a1', register, patient)).toMatchObject({ id: '1' });
  expect(await held.get('a1')).toMatchObject({ id: '1' });
  expect(await held.get('a2')).toBeNull();
});

it('registers now what was not begun ahead, as after a restart', async () => {
  const held = new Registrations();
  expect(await held.take('a1', async () => made('1'), patient)).toMatchObject({ id: '1' });
});

it('tries once more what failed ahead, and reports a second failure', async () => {
  const held = new Registrations();
  let calls = 0;
  const twice = async () => {
    calls += 1;
    if (calls < 2) throw new Error('away');
    return made(String(calls));
  };
  held.ahead('a1', twice);
  expect(await held.take('a1', twice, patient)).toMatchObject({ id: '2' });
  const never = async () => {
    calls += 1;
    throw new Error('refused');
  };
  held.ahead('a2', never);
  await expect(held.take('a2', never, patient)).rejects.toThrow('refused');
  expect(calls).toBe(4);
  await expect(held.take('a3', never, patient)).rejects.toThrow('refused');
  expect(calls).toBe(5);
  expect(await held.get('a3')).toBeNull();
});

it('reports an immediate failure to the caller of take, not of ahead', async () => {
  const held = new Registrations();
  const lost = () => {
    throw new Error('a device is gone');
  };
  held.ahead('a1', lost);
  await expect(held.take('a1', lost, patient)).rejects.toThrow('a device is gone');
});

it('aborts a registration when its agent is dropped, and waits for its end', async () => {
  const held = new Registrations();
  const order: string[] = [];
  held.ahead('a1', async (signal) => {
    await new Promise((resolve) => signal.addEventListener('abort', resolve));
    order.push('given up');
    throw signal.reason;
  });
  await held.drop('a1');
  order.push('dropped');
  expect(order).toEqual(['given up', 'dropped']);
  expect(await held.get('a1')).toBeNull();
});

it('releases a caller that leaves at once, and continues', async () => {
  const held = new Registrations();
  const { promise, resolve } = Promise.withResolvers<Registration>();
  const abort = new AbortController();
  const waiting = held.take('a1', () => promise, abort.signal);
  abort.abort();
  await expect(waiting).rejects.toThrow('aborted');
  resolve(made('1'));
  expect(await held.take('a1', async () => made('2'), patient)).toMatchObject({ id: '1' });
});
