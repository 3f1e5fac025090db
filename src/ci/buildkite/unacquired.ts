/**
 * Jobs whose agent is over and never had them: the service still keeps them for us, and shows nothing of why they wait. They are
 * tried again, given to others, or ended with the reason.
 */
import type { AgentId, Failure, JobId, JobResult } from '../../core/slot.ts';
import type { ErrorCode } from '../../errors.ts';
import type { Log } from '../../log.ts';
import type { JobRows } from './job-rows.ts';
import type { Reservations } from './reservations.ts';
import type { Stacks } from './stacks.ts';

export interface UnacquiredParts {
  readonly stacks: Pick<Stacks, 'reserve'>;
  readonly rows: Pick<JobRows, 'left'>;
  readonly reservations: Pick<Reservations, 'of' | 'put' | 'end' | 'giveBack' | 'forget'>;
  readonly log: Log;
}

export interface Unacquired {
  readonly job: JobId;
  readonly agent: AgentId;
  /** Key of the stack that has reserved it. */
  readonly stack: string;
  readonly result: JobResult;
  /** Why its agent was given up; null: it ended by itself, or was ended for another reason. */
  readonly late: string | null;
  /** The service's word for how far it is: reserved, or waiting again. */
  readonly state: string;
}

/** Tries to run a job before it is ended. */
export const mostTries = 3;

/** Troubles of this host, its Engine and its service: no other job would be better off, so none is ended for them. */
const passing: ReadonlySet<string> = new Set<ErrorCode>([
  ...(['E_ENGINE_UNREACHABLE', 'E_ENGINE_SILENT', 'E_FILTER', 'E_DISK_FULL', 'E_STATE_FULL', 'E_STATE_BUSY', 'E_SECRET'] as const),
  ...(['E_CI_UNREACHABLE', 'E_CI_THROTTLED', 'E_CI_ANSWER', 'E_CI_CREDENTIAL'] as const),
]);

/** Whether it says nothing about the job. */
export function isPassing({ code }: Pick<Failure, 'code'>): boolean {
  return passing.has(code);
}

/** @throws OnejobError E_CI_*; then nothing is settled */
export async function settleUnacquired(about: Unacquired, parts: UnacquiredParts, signal: AbortSignal): Promise<void> {
  const { job, agent, stack, result, late, state } = about;
  const { stacks, rows, reservations, log } = parts;
  if (state !== 'reserved') return reservations.forget(job, null);
  const why = late ?? whyNot(result);
  log.warn('job not acquired', { job, agent, reason: why });
  const one = reservations.of(job);
  const isOurs = late === null && result.kind === 'lost';
  if (one !== null && isOurs) {
    reservations.put(job, null);
    await reservations.giveBack(job, why);
    return;
  }
  if (one === null) {
    // How often it was tried only the manager before this one knew.
    await stacks.reserve(stack, [job], 1, signal).catch(() => {});
    rows.left(job, null);
    return;
  }
  const failures = one.failures + 1;
  if (failures < mostTries && (late !== null || result.kind !== 'timeout')) {
    reservations.put(job, null, failures);
    return;
  }
  await reservations.end(job, { detail: `onejob could not run this job: ${why}.`, word: 'failed' });
  rows.left(job, 'failed');
}

/** Exit codes of the agent: its `core/client.go`, `clicommand/agent_start.go`. */
function whyNot(result: JobResult): string {
  switch (result.kind) {
    case 'code':
      if (result.code === 27) return `the service did not let its agent acquire it`;
      return `its agent ended with exit code ${result.code} before it had acquired it`;
    case 'signal':
      return `its agent was ended by ${result.signal} before it had acquired it`;
    case 'oom':
      return 'its sandbox ran out of memory before its agent had acquired it';
    case 'timeout':
      return "its agent did not acquire it within the pool's `timeout`";
    case 'disk':
      return "its files took more than the pool's `disk` before its agent had acquired it";
    case 'cancelled':
      return 'it was cancelled before its agent had acquired it';
    case 'lost':
      return result.reason;
    case 'unstartable':
      return result.failure.message;
  }
}
