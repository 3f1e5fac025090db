import { expect, test } from 'vitest';
import { handClock } from '../../../test/kit/core.ts';
import { scratch } from '../../../test/support/scratch.ts';
import { decide } from '../../core/decide.ts';
import { type AgentLane, emptySlot, hostRestarted, type JobResult, type Slot, type SlotEvent } from '../../core/slot.ts';
import { LogFollowers } from '../../logs/followers.ts';
import { createLogFolder } from '../../logs/log-file.ts';
import type { Runtime } from '../../ports/runtime.ts';
import { readyMarker, releasedMarker } from '../../runtimes/gate.ts';
import { type ObserveParts, Observer } from './observe.ts';

const agent = 'a1b2c3d4e5';
const releasing: AgentLane = { kind: 'releasing', agent, job: 'j', limit: null, fingerprint: 'f', since: 0 };
const stopped: AgentLane = {
  kind: 'ending',
  agent,
  job: 'j',
  signal: 'KILL',
  why: 'unreleased',
  released: false,
  failure: { code: 'E_GATE_SILENT', message: 'silent', retry: true },
  due: 9,
};
const registering: AgentLane = { kind: 'registering', agent, fingerprint: 'f', since: 0 };

/** What is told once an agent in this place of its slot has ended with `code`, if this is all that is left of its output. */
async function told(place: Partial<Slot>, output: string, code: number): Promise<{ slot: Slot; event: SlotEvent }> {
  using dir = scratch();
  const clock = handClock();
  async function* logs() {
    if (output !== '') yield [{ stream: 'stdout', time: 1n, bytes: Buffer.from(output) }];
  }
  const runtime = { name: 'docker', logs } as unknown as Runtime;
  const slot: Slot = { ...emptySlot({ key: 'p/1', runtime: 'docker', service: 'own', grace: 5 }), ...place };
  const posted: SlotEvent[] = [];
  const pool = { config: { recipe: { image: 'acme/broken:1' } }, service: { capabilities: {} } };
  const reconciler = { slotOf: () => slot, poolOf: () => pool, post: (_: string, event: SlotEvent) => posted.push(event) };
  const followers = new LogFollowers({ logs: createLogFolder(dir.path), clock, state: () => {}, failed: () => {} });
  const parts = { clock, followers, reconciler, runtimes: [runtime] } as unknown as ObserveParts;
  await new Observer(parts).exited(agent, { kind: 'code', code });
  await followers.close();
  const [event] = posted;
  if (event === undefined) throw new Error('nothing was posted');
  return { slot, event };
}

/** What becomes of the job of an agent in `lane` that ended with exit code 0, if this is all that is left of its output. */
async function judged(lane: AgentLane, output: string): Promise<{ readonly returned: boolean; readonly result: JobResult | null }> {
  const { slot, event } = await told({ agent: lane }, output, 0);
  const { changes } = decide(slot, event, 1);
  const ended = changes.find((one) => one.change === 'ended');
  return { returned: changes.some(({ change }) => change === 'returned'), result: ended?.change === 'ended' ? ended.result : null };
}

test.each([
  ['releasing', releasing],
  ['stopped', stopped],
])('a %s job whose log no longer shows its gate is lost, and never runs again', async (_, lane) => {
  for (const output of ['', 'of the job\n', `${readyMarker(agent)}\nof the job\n`]) {
    const { returned, result } = await judged(lane, output);
    expect([returned, result?.kind]).toEqual([false, 'lost']);
  }
});

test('a job at whose gate nothing else was printed returns to its queue', async () => {
  expect(await judged(releasing, `${readyMarker(agent)}\n`)).toEqual({ returned: true, result: null });
});

test('a job that its log shows to have begun has the result of its script', async () => {
  const output = `${readyMarker(agent)}\n${releasedMarker(agent)}\nof the job\n`;
  expect(await judged(releasing, output)).toEqual({ returned: false, result: { kind: 'code', code: 0 } });
});

test('an agent without a job that says nothing is a failure of its pool', async () => {
  expect(await judged(registering, '')).toEqual({ returned: false, result: null });
});

const preparing: Slot['standby'] = { kind: 'preparing', agent, reserved: null, since: 0 } as const;

test.each([
  [
    1,
    '[FATAL tini (7)] exec sh failed: Exec format error\n',
    'E_GATE_ENDED',
    /exit code 1 before its script began: \[FATAL tini \(7\)\] exec sh failed: Exec format error$/,
  ],
  [1, 'first\n\u001b[31mlast\u0007\n\n', 'E_GATE_ENDED', /before its script began: {1,2}\[31mlast$/],
  [1, `banner\n${readyMarker(agent)}\n`, 'E_GATE_ENDED', /before its script began: banner$/],
  [1, '', 'E_GATE_ENDED', /exit code 1 before its script began\.$/],
  [127, 'exec: "sh": not found\n', 'E_NO_SHELL', /^The image "acme\/broken:1" has no usable "sh"/],
] as const)(
  'a sandbox that ends with %i before its gate, after %j, says what it said last',
  async (code, output, failure, words) => {
    const { event } = await told({ standby: preparing }, output, code);
    expect(event).toMatchObject({ kind: 'prepareFailed', failure: { code: failure, message: expect.stringMatching(words) } });
  },
);

/** What is told of an agent in `lane` of an earlier boot, whose sandbox is listed as made and not started. */
async function toldAfterBoot(lane: AgentLane, elsewhere: boolean): Promise<SlotEvent[]> {
  using dir = scratch();
  const slot: Slot = { ...emptySlot({ key: 'p/1', runtime: 'docker', service: 'own', grace: 5 }), agent: lane };
  const runtime = {
    name: 'docker',
    capabilities: { elsewhere },
    async *logs() {
      yield [{ stream: 'stdout', time: 1n, bytes: Buffer.from(`${readyMarker(agent)}\n`) }];
    },
    async *events() {},
    list: async () => [{ agent, pool: 'p', slot: 'p/1', state: { kind: 'created' } }],
    disk: async () => null,
  } as unknown as Runtime;
  const posted: SlotEvent[] = [];
  const reconciler = {
    slots: [slot],
    slotOf: () => slot,
    placeOf: () => slot,
    post: (_: string, event: SlotEvent) => posted.push(event),
    pause: { release: () => false },
    catchUp() {},
    replanAll() {},
  };
  const clock = handClock();
  const followers = new LogFollowers({ logs: createLogFolder(dir.path), clock, state: () => {}, failed: () => {} });
  const probe = { isProbe: () => false };
  const more = { probe, held: { isOurs: () => false }, fingerprints: { refresh: async () => {} }, rebooted: new Set(['p/1']) };
  const observer = new Observer({ clock, followers, reconciler, runtimes: [runtime], ...more } as unknown as ObserveParts);
  await observer.start();
  await observer.close();
  await followers.close();
  return posted;
}

const busy: AgentLane = { kind: 'busy', agent, job: 'j', since: 0, due: null };

test('a sandbox that a power cut has made look unstarted is lost with its job: nobody else would ever end it', async () => {
  expect(await toldAfterBoot(busy, false)).toEqual([{ kind: 'exited', agent, exit: hostRestarted, released: true }]);
});

test('on another host nothing was cut off', async () => {
  expect(await toldAfterBoot(busy, true)).toEqual([]);
});

test('a script that may have gone to its gate before a power cut counts as begun, though its log does not show it', async () => {
  const [event] = await toldAfterBoot(releasing, false);
  expect(event).toEqual({ kind: 'exited', agent, exit: hostRestarted, released: true });
});
