/** What thousands of agents that wait cost: nothing is followed, and nobody looks, until something may come from one. */
import { expect, test } from 'vitest';
import { podOf } from '../../../test/kit/fake-kubernetes.ts';
import { type FakedCluster, fakedCluster, specOf } from '../../../test/kit/faked-cluster.ts';
import { type RuntimeEvent, start } from '../../ports/runtime.ts';
import { frame, readyMarker, releasedMarker } from '../gate.ts';

const agent = 'a1b2c3';
const name = `oj-${agent}`;
const never = new AbortController().signal;
const at = (second: number): string => `2026-11-29T10:00:0${second}Z`;

/** Makes an agent that is at its gate. */
async function made(here: FakedCluster): Promise<void> {
  const preparing = here.runtime.prepare(specOf(agent), () => {}, never);
  await here.api.called('create');
  here.api.put(podOf(agent));
  await preparing;
  here.api.write(name, at(0), `${readyMarker(agent)}\n`);
}

/** What its log says from now on. */
function heard({ runtime }: FakedCluster) {
  const stop = new AbortController();
  const told = { text: '', isOver: false };
  void (async () => {
    for await (const chunks of runtime.logs(agent, start, stop.signal))
      for (const { bytes } of chunks) told.text += Buffer.from(bytes).toString();
    told.isOver = true;
  })();
  return {
    told,
    says: (text: string) => expect.poll(() => told.text, { interval: 1 }).toContain(text),
    [Symbol.dispose]: () => stop.abort(),
  };
}

test('the log of an agent is followed from its release on', async () => {
  await using here = await fakedCluster();
  await made(here);
  using log = heard(here);
  await log.says('ready');
  // The next look would be a minute later.
  await here.clock.waits(60_000);
  await here.runtime.release(agent, frame(agent, 'echo hi'), never);
  await here.api.called('follow');
  expect(here.api.count('log')).toBe(1);
  here.api.write(name, at(1), `${releasedMarker(agent)}\n`);
  here.api.write(name, at(1), 'hi\n');
  await log.says('hi\n');
  here.api.write(name, at(2), `\u001eonejob exited ${agent} 0\n`);
  await expect.poll(() => log.told.isOver, { interval: 1 }).toBe(true);
});

test('one that has not reached its gate is looked at until it has', async () => {
  await using here = await fakedCluster();
  const preparing = here.runtime.prepare(specOf(agent), () => {}, never);
  await here.api.called('create');
  here.api.put(podOf(agent));
  await preparing;
  using log = heard(here);
  for (const pause of [50, 100, 200, 400, 500, 500]) await here.clock.pass(pause);
  await here.api.called('log', 7);
  here.api.write(name, at(0), `${readyMarker(agent)}\n`);
  await here.clock.pass(500);
  await log.says('ready');
  expect(here.api.count('follow')).toBe(0);
});

test.each(['TERM', 'KILL'] as const)('the end of one that gets %s at its gate is followed', async (signal) => {
  await using here = await fakedCluster();
  await made(here);
  using log = heard(here);
  await log.says('ready');
  await here.runtime.signal(agent, signal);
  await here.api.called('follow');
  here.api.write(name, at(1), `\u001eonejob exited ${agent} 143\n`);
  await expect.poll(() => log.told.isOver, { interval: 1 }).toBe(true);
});

test('the end of its pod is the end of its log', async () => {
  await using here = await fakedCluster();
  await made(here);
  using log = heard(here);
  await log.says('ready');
  here.api.put(podOf(agent, { terminated: { exitCode: 137, reason: 'Error' } }, { status: { phase: 'Failed' } }));
  await expect.poll(() => log.told.isOver, { interval: 1 }).toBe(true);
});

test('one that another onejob made is looked at now and then, because that may have opened its gate just before', async () => {
  await using here = await fakedCluster();
  here.api.put(podOf(agent));
  here.api.write(name, at(0), `${readyMarker(agent)}\n`);
  using log = heard(here);
  await log.says('ready');
  for (const pause of [5_000, 10_000, 20_000, 40_000]) await here.clock.pass(pause);
  await here.api.called('log', 5);
  expect(here.api.count('follow')).toBe(0);
  here.api.write(name, at(1), `${releasedMarker(agent)}\n`);
  here.api.write(name, at(1), 'it ran\n');
  await here.clock.pass(80_000);
  await log.says('it ran\n');
  await here.api.called('follow');
});

test('one whose job runs already is followed at once', async () => {
  await using here = await fakedCluster();
  here.api.put(podOf(agent));
  for (const marker of [readyMarker(agent), releasedMarker(agent)]) here.api.write(name, at(0), `${marker}\n`);
  using log = heard(here);
  await here.api.called('follow');
  here.api.write(name, at(1), 'it runs\n');
  await log.says('it runs\n');
});

test('at most 32 calls are under way', async () => {
  await using here = await fakedCluster();
  await here.runtime.list(never);
  here.api.always('create', 'silent');
  for (let n = 0; n < 40; n += 1) here.runtime.prepare(specOf(`agent-${n}`), () => {}, never).catch(() => {});
  const last = await here.api.called('create', 32);
  // What comes now comes after those that could have come.
  here.api.put(podOf('other', 'pending'));
  await expect.poll(async () => (await here.runtime.list(never)).length, { interval: 1 }).toBe(1);
  expect(here.api.count('create')).toBe(32);
  here.api.always('create', null);
  last.cut();
  await here.api.called('create', 33);
});

test('news of one agent are told among many', async () => {
  await using here = await fakedCluster();
  for (let n = 0; n < 3; n += 1) here.api.put(podOf(`agent-${n}`));
  const stop = new AbortController();
  const events: RuntimeEvent[] = [];
  void (async () => {
    for await (const event of here.runtime.events(stop.signal)) events.push(event);
  })();
  await here.api.called('watch');
  here.api.remove('oj-agent-1');
  await expect
    .poll(() => events.map((event) => ('agent' in event ? `${event.kind} ${event.agent}` : event.kind)), { interval: 1 })
    .toEqual(['connected', 'exited agent-1', 'removed agent-1']);
  stop.abort();
});
