import { expect, test } from 'vitest';
import { handClock } from '../../../test/kit/core.ts';
import type { Action, SlotEvent } from '../../core/slot.ts';
import { createActionRunner, type Executors } from './action-runner.ts';

/** Executors that end when told to, and a clock moved by hand. */
function workbench() {
  const begun: string[] = [];
  const ends = new Map<string, { resolve: (events: SlotEvent[]) => void; reject: (error: Error) => void }>();
  const posted: SlotEvent[] = [];
  const retries: number[] = [];
  const clock = handClock();
  const execute = (action: Action, _key: string, signal: AbortSignal): Promise<SlotEvent[]> => {
    const name = `${action.act} ${action.agent}`;
    begun.push(name);
    return new Promise((resolve, reject) => {
      ends.set(name, { resolve, reject });
      signal.addEventListener('abort', () => begun.push(`${name} aborted`));
    });
  };
  const executors: Executors = {
    prepare: execute,
    register: execute,
    release: execute,
    retire: execute,
    terminate: execute,
    kill: execute,
    settle: execute,
    clear: execute,
    prove: execute,
  };
  const dispatcher = createActionRunner({
    executors,
    clock,
    post: (_, event) => posted.push(event),
    boundary: () => {},
    retrying: (_, __, ___, ms) => retries.push(ms),
  });
  const settled = () => new Promise<void>((resolve) => setImmediate(resolve));
  const advance = async (ms: number) => {
    clock.advance(ms);
    await settled();
  };
  const end = async (name: string, events: SlotEvent[] | Error = []) => {
    const one = ends.get(name);
    if (events instanceof Error) one?.reject(events);
    else one?.resolve(events);
    await settled();
  };
  return { dispatcher, begun, posted, retries, clock, settled, advance, end };
}

test('a newer action of a sandbox aborts the older one, and begins only when that has ended', async () => {
  const it = workbench();
  it.dispatcher.start('p/1', { act: 'prepare', agent: 'a', job: null });
  await it.settled();
  it.dispatcher.start('p/1', { act: 'clear', agent: 'a' });
  await it.settled();
  expect(it.begun).toEqual(['prepare a', 'prepare a aborted']);
  await it.end('prepare a');
  expect(it.begun).toEqual(['prepare a', 'prepare a aborted', 'clear a']);
});

test('proving devices and clearing the sandbox run in parallel', async () => {
  const it = workbench();
  it.dispatcher.start('p/1', { act: 'prove', agent: 'a' });
  it.dispatcher.start('p/1', { act: 'clear', agent: 'a' });
  await it.settled();
  expect(it.begun).toEqual(['prove a', 'clear a']);
});

test('repeating an action changes nothing while it runs, and runs it again afterwards', async () => {
  const it = workbench();
  it.dispatcher.start('p/1', { act: 'kill', agent: 'a' });
  it.dispatcher.start('p/1', { act: 'kill', agent: 'a' });
  await it.settled();
  expect(it.begun).toEqual(['kill a']);
  await it.end('kill a');
  it.dispatcher.start('p/1', { act: 'kill', agent: 'a' });
  await it.settled();
  expect(it.begun).toEqual(['kill a', 'kill a']);
});

test('a failed action is tried again, each time later, until it works or is no longer wanted', async () => {
  const it = workbench();
  it.dispatcher.start('p/1', { act: 'clear', agent: 'a' });
  await it.settled();
  for (const wait of [500, 1_000, 2_000]) {
    await it.end('clear a', new Error('busy'));
    await it.advance(wait);
  }
  await it.end('clear a', [{ kind: 'cleared', agent: 'a', outcome: null }]);
  expect(it.retries).toEqual([500, 1_000, 2_000]);
  expect(it.begun).toHaveLength(4);
  expect(it.posted).toEqual([{ kind: 'cleared', agent: 'a', outcome: null }]);
});

test('preparing and clearing give way to a simultaneous release, but not for long', async () => {
  const it = workbench();
  it.dispatcher.start('p/1', { act: 'clear', agent: 'old' });
  it.dispatcher.start('p/1', { act: 'release', agent: 'a', job: 'j' });
  it.dispatcher.start('p/1', { act: 'prepare', agent: 'next', job: null });
  await it.settled();
  expect(it.begun).toEqual(['release a']);
  await it.end('release a');
  expect(it.begun).toEqual(['release a', 'clear old', 'prepare next']);
  it.dispatcher.start('p/2', { act: 'release', agent: 'b', job: 'k' });
  it.dispatcher.start('p/2', { act: 'prepare', agent: 'other', job: null });
  await it.settled();
  await it.advance(49);
  expect(it.begun).not.toContain('prepare other');
  await it.advance(1);
  expect(it.begun).toContain('prepare other');
});

test('closing ends everything, starts nothing more and leaves no timer', async () => {
  const it = workbench();
  it.dispatcher.start('p/1', { act: 'clear', agent: 'a' });
  await it.settled();
  await it.end('clear a', new Error('busy'));
  const closed = it.dispatcher.close();
  it.dispatcher.start('p/1', { act: 'kill', agent: 'b' });
  await closed;
  expect(it.begun).not.toContain('kill b');
  expect(it.clock.next()).toBeNull();
  expect(it.dispatcher.size).toBe(0);
});
