/**
 * Prints the full state × event table of a slot by running `decide` on one sample of every state and event, and keeps it
 * in `docs/slot-lifecycle.md`. A state or an event without a sample does not compile.
 */
import { type Decision, decide } from '../src/core/decide.ts';
import {
  type Action,
  type AgentLane,
  type Change,
  emptySlot,
  type Slot,
  type SlotEvent,
  type StandbyLane,
  stateName,
} from '../src/core/slot.ts';

const agent = 'a1';
const failure = { code: 'E_SAMPLE', message: 'a sample', retry: true };
const reserved = { job: 'j1', limit: null, cold: true };
const due = 1_000;

const standbySamples: Record<StandbyLane['kind'], Record<string, StandbyLane>> = {
  none: { none: { kind: 'none' } },
  preparing: {
    preparing: { kind: 'preparing', agent, reserved: null, since: 0 },
    'preparing for a job': { kind: 'preparing', agent, reserved, since: 0 },
  },
  standby: {
    standby: { kind: 'standby', agent, reserved: null, fingerprint: 'f', since: 0 },
    'standby for a job': { kind: 'standby', agent, reserved, fingerprint: 'f', since: 0 },
  },
};

const ending = { agent, job: 'j1', failure: null, due } as const;
const agentSamples: Record<AgentLane['kind'], Record<string, AgentLane>> = {
  free: { free: { kind: 'free' } },
  registering: { registering: { kind: 'registering', agent, fingerprint: 'f', since: 0 } },
  releasing: {
    'releasing (early)': { kind: 'releasing', agent, job: null, limit: null, fingerprint: 'f', since: 0 },
    'releasing (late)': { kind: 'releasing', agent, job: 'j1', limit: null, fingerprint: 'f', since: 0 },
  },
  idle: {
    'idle, not seen': { kind: 'idle', agent, fingerprint: 'f', online: false, since: 0 },
    'idle, online': { kind: 'idle', agent, fingerprint: 'f', online: true, since: 0 },
  },
  retiring: { retiring: { kind: 'retiring', agent, since: 0 } },
  busy: { busy: { kind: 'busy', agent, job: 'j1', since: 0, due } },
  ending: {
    'stopping, not released': { kind: 'ending', signal: 'TERM', ...ending, why: 'shutdown', released: false },
    'stopping, released': { kind: 'ending', signal: 'TERM', ...ending, why: 'shutdown', released: true },
    'killing, not released': { kind: 'ending', signal: 'KILL', ...ending, why: 'unreleased', released: false },
    'killing, released': { kind: 'ending', signal: 'KILL', ...ending, why: 'shutdown', released: true },
  },
  proving: { proving: { kind: 'proving', agent, since: 0 } },
};

const exited = { kind: 'exited', agent, exit: { kind: 'code', code: 0 } } as const;
const eventSamples: Record<SlotEvent['kind'], Record<string, SlotEvent>> = {
  fill: {
    fill: { kind: 'fill', agent, reserved: null },
    'fill for a job': { kind: 'fill', agent, reserved },
  },
  discard: { discard: { kind: 'discard' } },
  assign: { assign: { kind: 'assign', job: 'j1', limit: null } },
  engage: { engage: { kind: 'engage' } },
  ready: { ready: { kind: 'ready', agent, fingerprint: 'f' } },
  prepareFailed: { prepareFailed: { kind: 'prepareFailed', agent, failure } },
  registered: { registered: { kind: 'registered', agent } },
  registerFailed: { registerFailed: { kind: 'registerFailed', agent, failure } },
  released: { released: { kind: 'released', agent } },
  releaseFailed: { releaseFailed: { kind: 'releaseFailed', agent, failure, countsAgainst: 'pool' } },
  online: { online: { kind: 'online', agent } },
  retire: { retire: { kind: 'retire', agent } },
  retired: { retired: { kind: 'retired', agent } },
  jobSeen: { jobSeen: { kind: 'jobSeen', agent, job: 'j1', limit: null } },
  exited: {
    'exited, released never seen': { ...exited, released: false },
    'exited, released seen': { ...exited, released: true },
    'lost (infrastructure)': { kind: 'exited', agent, exit: { kind: 'lost', reason: 'the Engine ended it' }, released: false },
  },
  gone: { gone: { kind: 'gone', agent } },
  settled: { settled: { kind: 'settled', agent } },
  cleared: {
    'cleared, nothing to say': { kind: 'cleared', agent, outcome: null },
    'cleared, it had a job': { kind: 'cleared', agent, outcome: 'worked' },
    'cleared, it had none': { kind: 'cleared', agent, outcome: failure },
  },
  proved: { proved: { kind: 'proved', agent } },
  stop: {
    'stop: cancelled': { kind: 'stop', agent, why: 'cancelled', grace: 500 },
    'stop: shutdown': { kind: 'stop', agent, why: 'shutdown', grace: 500 },
  },
  due: { 'due, deadline reached': { kind: 'due' } },
};

const base: Slot = emptySlot({ key: 'pool/1', runtime: 'docker', grace: 500 });
const flat = <T>(samples: Record<string, Record<string, T>>): [string, T][] =>
  Object.values(samples).flatMap((one) => Object.entries(one));

/** The generated block: both lanes, then an agent that is leaving. */
export function slotTables(): string {
  const standby = flat(standbySamples).map(([name, lane]): [string, Slot] => [name, { ...base, standby: lane }]);
  const agents = flat(agentSamples).map(([name, lane]): [string, Slot] => [name, { ...base, agent: lane }]);
  const leaving: [string, Slot][] = [
    ['leaving, its job not settled', { ...base, leaving: [{ agent, job: 'j1', exit: null }] }],
    ['leaving', { ...base, leaving: [{ agent, job: null, exit: null }] }],
  ];
  const device: [string, Slot][] = [
    ['busy, slot with devices', { ...base, devices: ['GPU-1'], agent: agentSamples.busy.busy ?? base.agent }],
  ];
  return [
    '### Standby lane (agent lane free)',
    '',
    table(standby),
    '',
    '### Agent lane (standby lane empty)',
    '',
    table(agents),
    '',
    '### Next to the lanes',
    '',
    table([...leaving, ...device]),
  ].join('\n');
}

function table(columns: readonly [string, Slot][]): string {
  const rows = flat(eventSamples).map(([name, event]) => [
    `**${name}**`,
    ...columns.map(([, slot]) => cell(slot, decide(slot, event, due))),
  ]);
  const head = ['event ↓ · state →', ...columns.map(([name]) => name)];
  return [head, head.map(() => '---'), ...rows].map((row) => `| ${row.join(' | ')} |`).join('\n');
}

function cell(before: Slot, { slot, changes, actions }: Decision): string {
  if (slot === before) return '·';
  const lines = [`→ ${where(before, slot)}`, ...changes.map(changeText), ...actions.map(actionText)];
  return lines.join('<br>');
}

/** What is different now, in the words of the states. */
function where(before: Slot, after: Slot): string {
  const parts: string[] = [];
  if (after.standby !== before.standby) parts.push(after.standby.kind === 'none' ? 'no standby' : `**${after.standby.kind}**`);
  if (after.agent !== before.agent) parts.push(`**${stateName(after.agent)}**`);
  if (after.leaving.length > before.leaving.length) parts.push('leaving');
  if (after.leaving.length < before.leaving.length) parts.push('gone');
  return parts.join(', ');
}

function changeText(change: Change): string {
  switch (change.change) {
    case 'failed':
    case 'worked':
      return `_${change.stage} ${change.change}_`;
    case 'ended':
      return `_job ended: ${change.result.kind}_`;
    default:
      return `_job ${change.change}_`;
  }
}

function actionText(action: Action): string {
  return `\`${action.act}\``;
}

const from = '<!-- generated by scripts/docs-slots.ts: begin -->';
const to = '<!-- generated by scripts/docs-slots.ts: end -->';

/** The page with a fresh block between its markers. @throws Error when the markers are not there. */
export function withSlotTables(page: string): string {
  const start = page.indexOf(from);
  const end = page.indexOf(to);
  if (start === -1 || end < start) throw new Error(`docs/slot-lifecycle.md needs the lines "${from}" and "${to}"`);
  return `${page.slice(0, start + from.length)}\n\n${slotTables()}\n\n${page.slice(end)}`;
}
