/** States in words, with how they look: `ok`, `busy`, `calm`, `warn`, `bad`, `off`. */

import { quoted } from '../../../src/base/quoted.ts';
import { formatBytes } from '../../../src/base/units.ts';
import { commandText } from '../../../src/cli/job-title.ts';
import { detailOf, outcomeIn } from '../../../src/contract/outcome.ts';
import type { Outcome } from '../../../src/core/job-end.ts';
import type { Device, Job, Pool, Slot, Verdict } from '../views.ts';
import { formatAge, plain, plural, rangeText } from './text.ts';

export type Tone = 'ok' | 'busy' | 'calm' | 'warn' | 'bad' | 'off';

export interface Said {
  readonly word: string;
  readonly tone: Tone;
}

/** What people call it: its name, its title at the CI service, or its command; `[3]` behind it is its place in an array. */
export function jobName({ name, about, command, id, array }: Job): string {
  const text = plain(name ?? about?.title ?? commandText({ command })).trim();
  const place = array === undefined ? '' : ` [${array.index}]`;
  return (text === '' ? id : text.slice(0, 300)) + place;
}

/** Who submitted it, or where it comes from. */
export function jobOrigin({ user, about }: Job): string {
  const from = about === null ? [] : [about.branch, about.repository].filter((part) => part !== null);
  return plain([user ?? '', from.join(' of '), about?.reason ?? ''].filter((part) => part !== '').join(', '));
}

export const verdictWords: Readonly<Record<Verdict['kind'], Said>> = {
  passed: { word: 'passed', tone: 'ok' },
  cancelled: { word: 'cancelled', tone: 'off' },
  code: { word: 'your code', tone: 'warn' },
  infrastructure: { word: 'infrastructure', tone: 'bad' },
  configuration: { word: 'configuration', tone: 'bad' },
  unknown: { word: 'unknown', tone: 'calm' },
};

/** What the daemon counts as one image although it is many (`src/contract/verdict.ts`). */
export const otherImages = 'other images';

/** The same without their looks. */
export const verdictLabels: Readonly<Record<Verdict['kind'], string>> = {
  passed: verdictWords.passed.word,
  cancelled: verdictWords.cancelled.word,
  code: verdictWords.code.word,
  infrastructure: verdictWords.infrastructure.word,
  configuration: verdictWords.configuration.word,
  unknown: verdictWords.unknown.word,
};

export function jobState(job: Job): Said {
  switch (job.state) {
    case 'waiting':
    case 'queued':
      return { word: 'waiting', tone: 'calm' };
    case 'reserved':
    case 'assigned':
      return { word: 'starting', tone: 'busy' };
    case 'running':
      return { word: 'running', tone: 'busy' };
    case 'settling':
      return { word: 'finishing', tone: 'busy' };
    case 'done':
      return endState(job);
    default:
      return { word: newer(job.state), tone: 'calm' };
  }
}

/** In the words of all services; whose fault it was is its tone. */
function endState(job: Job): Said {
  const outcome = outcomeIn(job);
  const known = outcome === null ? null : endTones[outcome];
  // A newer daemon may know more of both.
  const tone = job.verdict ? (verdictWords[job.verdict.kind]?.tone ?? 'calm') : (known ?? 'calm');
  return { word: plain(outcome ?? 'ended'), tone };
}

const endTones: Readonly<Record<Outcome, Tone>> = { passed: 'ok', failed: 'warn', cancelled: 'off', lost: 'bad' };

/** What else its result says, for next to its state, such as `exit 3` or the word of its service; empty if there is nothing to add. */
export function endDetail(job: Job): string {
  const detail = job.state === 'done' ? detailOf(job.result) : null;
  return detail === null || detail === jobState(job).word ? '' : plain(detail);
}

/** What it may have at most, as far as that is certain. */
export function limitsText({ limits = {} }: Job): string {
  const { memory, cpus, timeout } = limits;
  const parts = [
    memory == null ? '' : `${formatBytes(memory)} of memory`,
    cpus == null ? '' : plural(cpus, 'CPU'),
    timeout == null ? '' : `${formatAge(timeout)} of time`,
  ].filter((part) => part !== '');
  const isKnown = memory !== undefined || cpus !== undefined || timeout !== undefined;
  return parts.length === 0 && isKnown ? 'none' : parts.join(', ');
}

/** Whose fault its end was and why, for next to its state; empty if there is nothing to add. */
export function endReason(job: Job): string {
  const { verdict = null, result } = job;
  if (verdict === null) return resultText(job);
  if (verdict.kind === 'passed' || verdict.kind === 'cancelled') return plain(verdict.why);
  const own = result?.kind === 'reported' ? detailOf(result) : null;
  // The reason may quote the word of its service already.
  const word = own === null || verdict.why.includes(own) ? '' : ` (${plain(own)})`;
  return `${verdictLabels[verdict.kind] ?? plain(verdict.kind)}: ${plain(verdict.why)}${word}`;
}

/** A word that only a newer daemon knows; here nothing may be missing. */
function newer(word: never): string {
  return plain(String(word));
}

/** Its result in words; empty while it has none. */
export function resultText({ result, state }: Job): string {
  switch (result?.kind) {
    case undefined:
      return state === 'done' ? 'its CI service did not report a result' : '';
    case 'code':
      return `exit code ${result.code}`;
    case 'signal':
      return `ended by signal ${plain(result.signal)}`;
    case 'oom':
      return 'killed because it used more memory than allowed';
    case 'timeout':
      return 'ran past its time limit';
    case 'disk':
      return 'its files took more disk space than allowed';
    case 'cancelled':
      return 'cancelled';
    case 'lost':
      return `lost: ${plain(result.reason)}`;
    case 'unstartable':
      return `could not be started: ${plain(result.failure.message)}`;
    case 'reported':
      return `its CI service reports: ${plain(result.word)}`;
    default:
      return newer((result satisfies never as { kind: never }).kind);
  }
}

/** How it ended, and whose fault that was. */
export function verdictSentence(job: Job): string {
  const { verdict = null } = job;
  const result = resultText(job);
  if (verdict === null) return result === '' ? 'It ended.' : `It ended: ${result}.`;
  const heads = {
    passed: 'It passed',
    cancelled: 'It was cancelled',
    code: 'It failed by its own code',
    infrastructure: 'It failed by the infrastructure, not by its code',
    configuration: 'It failed by the configuration of this host, not by its code',
    unknown: 'It failed, and it is unknown whether by its code or by the infrastructure',
  };
  // The head says that already.
  if (verdict.why === 'the job was cancelled') return `${heads.cancelled}.`;
  return `${heads[verdict.kind] ?? plain(verdict.kind)}: ${plain(verdict.why)}.`;
}

/** Whether its files are still kept. `now`: wall clock of the daemon, ms. */
export function isHeld({ held }: Job, now: number): boolean {
  return held != null && held.until > now;
}

export function isWaiting({ state }: Job): boolean {
  return state === 'queued' || state === 'waiting';
}

/** An agent that waits for a job is not busy. */
export function isBusy({ agent: { state, job } }: Slot): boolean {
  if (state === 'releasing') return job !== null;
  return state !== 'free' && state !== 'registering' && state !== 'idle' && state !== 'retiring';
}

/** A job could begin there at once, if its pool takes any. */
export function isReady(slot: Slot): boolean {
  return !isBusy(slot) && slot.held === null && (slot.standby.state === 'standby' || slot.agent.online === true);
}

/** `closed`: its pool takes no jobs, so that nothing in it is ready for one. */
export function slotState(slot: Slot, closed = false): Said {
  const { agent, standby, held } = slot;
  const ready: Said = closed ? { word: 'prepared', tone: 'calm' } : { word: 'ready', tone: 'ok' };
  switch (agent.state) {
    case 'busy':
      return { word: 'busy', tone: 'busy' };
    case 'releasing':
      return { word: agent.job === null ? 'starting' : 'starting a job', tone: 'busy' };
    case 'stopping':
    case 'killing':
      return { word: 'stopping', tone: 'warn' };
    case 'proving':
      return { word: 'being checked', tone: 'calm' };
    case 'retiring':
      return { word: 'ending', tone: 'warn' };
    case 'registering':
      return { word: 'registering', tone: 'calm' };
    case 'idle':
      if (agent.online !== true) return { word: 'starting', tone: 'calm' };
      return ready;
    case 'free':
      if (held !== null) return { word: 'held', tone: 'bad' };
      if (standby.state === 'standby' || agent.online === true) return ready;
      return standby.state === 'preparing' ? { word: 'preparing', tone: 'calm' } : { word: 'empty', tone: 'off' };
    default:
      return { word: newer(agent.state), tone: 'calm' };
  }
}

export function deviceState({ state }: Pick<Device, 'state'>): Said {
  const words: Readonly<Record<Device['state'], Said>> = {
    free: { word: 'free', tone: 'ok' },
    leased: { word: 'in use', tone: 'busy' },
    occupied: { word: 'occupied', tone: 'warn' },
    reserved: { word: 'reserved', tone: 'warn' },
    quarantined: { word: 'quarantined', tone: 'bad' },
    missing: { word: 'missing', tone: 'bad' },
    unknown: { word: 'unknown', tone: 'warn' },
    elsewhere: { word: 'of another manager', tone: 'off' },
  };
  return words[state] ?? { word: plain(state), tone: 'calm' };
}

export interface PoolProblem {
  /** A sentence without its subject and its full stop. */
  readonly text: string;
  /** The same without its cause, where that is said elsewhere on the page. */
  readonly brief: string;
  /** What to type, if that ends it. */
  readonly hint: string | null;
}

/** Why a pool starts less than it could. `now`: wall clock, ms. */
export function poolProblems(pool: Omit<Pool, 'slots'>, now: number): PoolProblem[] {
  const problems: PoolProblem[] = [];
  const add = (text: string, hint: string | null = null, brief = text) => {
    const [whole = '', short = ''] = [text, brief].map((one) => plain(one).replace(/\.$/, ''));
    problems.push({ text: whole, brief: short, hint });
  };
  for (const held of pool.paused) {
    if (!held.startsWith('by ')) add(`starts nothing new: ${held}`);
    // A pool that left the config cannot be resumed.
    else add(`is paused ${held}`, pool.leaving ? null : resumeHint(pool.name, held.slice(3)));
  }
  if (pool.leaving) add('is no longer in the config, and ends when its jobs have ended');
  else if (pool.draining)
    add('drains: running jobs finish, and nothing new starts until it is resumed', resumeHint(pool.name), 'drains');
  for (const problem of pool.problems ?? []) add(problem);
  if (pool.backoff !== null) {
    const { failures, retryIn, reason, waitsFor } = pool.backoff;
    const times = failures === 1 ? 'failed to start an agent' : `failed to start agents ${failures} times`;
    const next = retryIn <= now ? 'the next try is now' : `the next try is in ${formatAge(retryIn - now)}`;
    const brief = `${waitsFor === null ? times : `waits for ${waitsFor}`}, ${next}`;
    add(`${brief}: ${reason}`, null, brief);
  }
  return problems;
}

/** `by`: who paused it; without a name, the command means `hand`. */
function resumeHint(pool: string, by = 'hand'): string {
  return `Type "onejob resume ${pool}${by === 'hand' ? '' : ` --reason ${quoted(by)}`}".`;
}

/**
 * Why it waits, a sentence without its full stop. The daemon's own reason comes first. `pools`: those that may run it. `now`: wall
 * clock, ms.
 */
export function whyWaits(job: Job, pools: readonly Pool[], now: number): string {
  if (job.reason !== null) return plain(job.reason).replace(/\.$/, '');
  const [pool, ...others] = pools;
  if (pool === undefined) return 'no pool may run it now';
  if (others.length > 0) return 'none of the agents that may run it is free';
  const name = `pool ${plain(pool.name)}`;
  const [problem] = poolProblems(pool, now);
  if (problem !== undefined) return `${name} ${problem.text}`;
  const usable = pool.slots.filter(({ held }) => held === null);
  const [held] = pool.slots.flatMap((slot) => slot.held ?? []);
  const out = held === undefined ? '' : `${pool.slots.length - usable.length} more cannot be used: ${plain(held)}`;
  if (usable.length === 0 && held !== undefined) return `${name} has no device that can be used: ${plain(held)}`;
  if (usable.length > 0 && usable.every(isBusy)) {
    const all = usable.length === 2 ? 'both' : `all ${usable.length}`;
    const busy = usable.length === 1 ? `the agent of ${name} is busy` : `${all} agents of ${name} are busy`;
    return out === '' ? busy : `${busy}; ${out}`;
  }
  const note = pool.slots.find((slot) => !isBusy(slot) && slot.note !== null)?.note;
  if (note) return `its agent is being prepared: ${plain(note)}`;
  return job.state === 'waiting' ? 'its CI service has not given it to an agent yet' : 'its agent is being prepared';
}

/** The same in few words where the page says all about its pool already. */
export function whyWaitsBriefly(job: Job, pools: readonly Pool[], now: number): string {
  const [pool, ...others] = pools;
  const whole = whyWaits(job, pools, now);
  if (pool === undefined) return whole.replace(/\. Type ".*$/s, '');
  if (others.length > 0) return whole;
  const [problem] = poolProblems(pool, now);
  const said = [...pool.paused, pool.backoff?.reason, 'the pool drains'].flatMap((text) =>
    text === undefined ? [] : [plain(text)],
  );
  const isOfPool = job.reason === null || said.some((text) => whole.includes(text.replace(/\.$/, '')));
  return problem === undefined || !isOfPool ? whole : `the pool ${problem.brief}`;
}

/** Whether jobs start there one after the other: a place in a line that does not move says nothing. */
function moves(pools: readonly Pool[]): boolean {
  return pools.some((pool) => !isClosed(pool) && pool.backoff === null);
}

/** The pools that may run a job, as far as the dashboard knows. */
export function poolsFor(job: Job, pools: readonly Pool[]): readonly Pool[] {
  return pools.filter(({ name, service }) => (job.pool === '' ? service === job.service : name === job.pool));
}

/** Place and start of a waiting job, as a sentence, as far as the daemon says; empty if it says nothing. `pools`: those that may run it. */
export function whenStarts({ ahead, startsIn }: Job, pools: readonly Pool[]): string {
  if (!moves(pools)) return '';
  const place = ahead === undefined ? [] : [ahead === 0 ? 'next in line' : `${plural(ahead, 'job')} before it`];
  const start = startsIn ? [`starts ${rangeText(startsIn.from, startsIn.to)}`] : [];
  const text = [...place, ...start].join(', ');
  return text === '' ? '' : `${text[0]?.toUpperCase()}${text.slice(1)}.`;
}

/** The same in few words, such as "next, within 9 min". */
export function whenStartsShort({ ahead, startsIn }: Job, pools: readonly Pool[]): string {
  if (!moves(pools)) return '';
  const place = ahead === undefined ? [] : [ahead === 0 ? 'next' : `${ahead} before`];
  return [...place, ...(startsIn ? [rangeText(startsIn.from, startsIn.to)] : [])].join(', ');
}

/** It starts no job now, whatever is prepared there. */
export function isClosed({ paused, draining, leaving }: Omit<Pool, 'slots'>): boolean {
  return paused.length > 0 || draining || leaving;
}

/** Numbers of a pool as in its head: how many agents are wanted, ready for a job at once, and at work. */
export function poolCounts(pool: Pool): { readonly wanted: number; readonly ready: number; readonly busy: number } {
  const ready = isClosed(pool) ? 0 : pool.slots.filter(isReady).length;
  return { wanted: pool.agents, ready, busy: pool.slots.filter(isBusy).length };
}
