/** Records how jobs ended, and whose fault it was. Every method runs inside the commit that ends the job, or adds a proof. */

import { type Ending, judgeEnding } from '../contract/verdict.ts';
import type { AgentId } from '../core/slot.ts';
import type { ServiceJob } from '../ports/service-job.ts';
import { type StoredJob, waitsSince } from '../store/jobs.ts';
import type { Store } from '../store/store.ts';
import { agentEvidence, deviceEvidence, type ImageEvidence, imageEvidence } from './evidence.ts';

export type OutcomeStore = Pick<Store, 'outcomes' | 'history' | 'proofs'>;

/** Proofs after one agent that are read: one per device and verdict. */
const proofsRead = 100;

/** A job of the own queue that is done. `poolLimit`: the time limit that its pool has now, ms; null for none. */
export function ownJobEnded(store: OutcomeStore, job: StoredJob, poolLimit: number | null): void {
  const { id, request, submittedAt, progress } = job;
  const { result, agent, startedAt, endedAt, cold } = progress;
  // The config may have changed since the job began: a limit that it did not reach is not the one that ended it.
  const ran = between(startedAt, endedAt) ?? 0;
  const timeLimit = request.timeout ?? (poolLimit !== null && ran >= poolLimit ? poolLimit : null);
  const own = {
    memoryLimited: request.memory !== null,
    memoryLimit: request.memory,
    ownRecipe: cold,
    ownImage: request.image !== null,
  };
  const ending: Ending = { result, exit: null, ...own, ...(result?.kind === 'timeout' && { timeLimit }) };
  const about = { job: id, service: 'own', pool: request.pool, image: request.image };
  record(store, about, agent, ending, { queuedAt: waitsSince(job), startedAt, endedAt: endedAt ?? submittedAt });
}

/** A job of a service that keeps its own jobs, as it was seen last. It says nothing until the job is over. */
export function serviceJobEnded(store: OutcomeStore, job: ServiceJob, seenAt: number): void {
  const { id, service, pool, agent, state, result, outcome, failedIn, note, queuedAt, startedAt, endedAt } = job;
  // A job that never had an agent here is another host's.
  if (state !== 'done' || agent === null) return;
  const reported = result === null ? null : { kind: 'reported' as const, word: result, outcome, failedIn, note };
  const ending: Ending = { result: reported, exit: null, memoryLimited: false, ownRecipe: false, ownImage: false };
  record(store, { job: id, service, pool, image: null }, agent, ending, { queuedAt, startedAt, endedAt: endedAt ?? seenAt });
}

/** An agent ended, or a proof was added: that may say more about how its job ended. A service may have told of that end before. */
export function agentEnded(store: OutcomeStore, agent: AgentId): void {
  for (const { seq: _, variance: __, ...outcome } of store.outcomes.ofAgent(agent)) {
    const { result } = outcome.ending;
    const exit = result?.kind === 'reported' ? (store.history.get(agent)?.exit ?? null) : null;
    const ending = { ...outcome.ending, exit };
    const verdict = judgeEnding(ending, deviceEvidence(store.proofs.ofAgent(agent, proofsRead)));
    if (JSON.stringify(verdict) !== JSON.stringify(outcome.verdict)) store.outcomes.save({ ...outcome, ending, verdict });
  }
}

/**
 * What is known of the image of an agent that is over; null: nothing. A job that starts again, and one whose service reports its end
 * later, have no outcome with this agent, so its own end has to do.
 */
export function evidenceOf(store: OutcomeStore, agent: AgentId): ImageEvidence | null {
  const [outcome] = store.outcomes.ofAgent(agent);
  if (outcome !== undefined) return imageEvidence(outcome.ending, outcome.verdict);
  const made = store.history.get(agent);
  return made === null || made.job === null ? null : agentEvidence(made.exit);
}

function record(
  store: OutcomeStore,
  about: { readonly job: string; readonly service: string; readonly pool: string; readonly image: string | null },
  agent: AgentId | null,
  ending: Ending,
  times: { readonly queuedAt: number | null; readonly startedAt: number | null; readonly endedAt: number },
): void {
  const made = agent === null ? null : store.history.get(agent);
  const proofs = agent === null || made?.devices.length === 0 ? [] : store.proofs.ofAgent(agent, proofsRead);
  const { queuedAt, startedAt, endedAt } = times;
  const all = {
    ...ending,
    exit: ending.result?.kind === 'reported' ? (made?.exit ?? null) : null,
    memoryLimited: ending.memoryLimited || (made?.memory ?? null) !== null,
    memoryLimit: ending.memoryLimit ?? made?.memory ?? null,
  };
  store.outcomes.save({
    ...about,
    agent,
    image: about.image ?? made?.image ?? null,
    devices: made?.devices ?? [],
    verdict: judgeEnding(all, deviceEvidence(proofs)),
    ending: all,
    wait: between(queuedAt, startedAt),
    run: between(startedAt, endedAt),
    endedAt,
  });
}

/** ms; null if one is unknown. A clock that was set back makes no negative times. */
function between(from: number | null, to: number | null): number | null {
  return from === null || to === null ? null : Math.max(0, to - from);
}
