/** What the steps of slots leave behind: rows of the history, in the same commit, and lines of the log about agents of CI services. */

import type { Log } from '../../base/log.ts';
import type { VarianceView } from '../../contract/variance.ts';
import type { AgentLane, Change, Exit, JobId, JobResult, Slot } from '../../core/slot.ts';
import type { ServiceJob } from '../../ports/service-job.ts';
import { agentEnded, type OutcomeStore } from '../../verdict/outcomes.ts';

/** Records what a step of a slot says about its agents, in the same commit. Standbys that were never released leave no trace. */
export function writeHistory(
  before: Slot,
  after: Slot,
  changes: readonly Change[],
  store: OutcomeStore,
  about: {
    readonly pool: string;
    readonly image: string | null;
    readonly memory: number | null;
    readonly name: string;
    readonly wall: number;
    /** How the card of an agent's measurement was. */
    readonly variance: (agent: string) => VarianceView | null;
  },
): void {
  if (before.agent === after.agent) return;
  const { wall, variance, ...place } = about;
  const left = before.agent.kind === 'free' ? null : before.agent.agent;
  const here = after.agent.kind === 'free' ? null : after.agent.agent;
  const table = store.history;
  if (left !== null && (left !== here || after.agent.kind === 'proving')) {
    table.ended(left, exitOf(left, after, changes), wall, variance(left));
    agentEnded(store, left);
  }
  if (here === null || after.agent.kind === 'proving') return;
  if (left !== here) table.made({ agent: here, slot: after.key, devices: after.devices, madeAt: wall, ...place });
  if (after.agent.kind === 'busy') table.released(here, after.agent.job, wall);
}

/** How its job ended, if by the agent's own end; else how the agent ended, if its slot knows. */
function exitOf(agent: string, { leaving }: Slot, changes: readonly Change[]): Exit | null {
  const ended = changes.find((change) => change.change === 'ended' && change.agent === agent);
  if (ended?.change === 'ended' && isExit(ended.result)) return ended.result;
  return leaving.find((one) => one.agent === agent)?.exit ?? null;
}

function isExit(result: JobResult): result is Exit {
  return result.kind === 'code' || result.kind === 'signal' || result.kind === 'oom' || result.kind === 'lost';
}

/** Logs the progress of an agent whose service keeps its own jobs: nobody else reports it on this host. */
export function tellProgress(before: Slot, after: Slot, log: Log, jobOf: (id: JobId) => ServiceJob | null): void {
  const [was, is] = [before.agent, after.agent];
  const slot = after.key;
  const title = (job: JobId | null): string | null => (job === null ? null : (jobOf(job)?.title ?? job));
  if (is.kind === 'idle' && is.online && !(was.kind === 'idle' && was.online)) log.info('agent online', { slot, agent: is.agent });
  if (is.kind === 'busy' && was.kind !== 'busy') log.info('job began', { slot, agent: is.agent, job: title(is.job) });
  if ('agent' in was && hasBegun(was) && !('agent' in is && is.agent === was.agent && is.kind !== 'proving'))
    log.info('agent ended', { slot, agent: was.agent, job: 'job' in was ? title(was.job) : null });
}

function hasBegun(lane: AgentLane): boolean {
  if (lane.kind === 'ending') return lane.released;
  return lane.kind === 'busy' || lane.kind === 'idle';
}
