/** What a sandbox is, from its folder and what Slurm says of its job. Pure. */
import type { AgentId, Exit } from '../../core/slot.ts';
import type { Granted, SandboxSeen } from '../../ports/runtime.ts';
import type { Unfit } from '../avoided.ts';
import type { SlurmJob } from './commands.ts';

/** Where it runs. */
export interface Where extends Granted {
  /** The id of its job. */
  readonly job: string;
  /** Of this start of its batch script; absent: a mark in its folder keeps it from a second one. */
  readonly start?: string;
}

/** What the folder of an agent says. */
export interface FolderLook {
  readonly exitCode: number | null;
  /** It was killed because its memory was used up. */
  readonly oom: boolean;
  readonly where: Where | null;
  readonly started: boolean;
  readonly again: boolean;
  /** The last words of the batch script itself; empty: none. */
  readonly said: string;
  /** Why it did not begin on its node; null: nothing was wrong there. */
  readonly unfit: Unfit | null;
}

const prefix = 'oj-';

/** A job id is not an identity: a controller that lost its last seconds gives it to another job. */
export function jobName(agent: AgentId): string {
  return prefix + agent;
}

export function agentOf({ name }: Pick<SlurmJob, 'name'>): AgentId | null {
  return name.startsWith(prefix) ? name.slice(prefix.length) : null;
}

/** What Slurm shows with the jobs of an owner. */
export function commentOf(owner: string): string {
  return `onejob:${owner}`;
}

export function isOf(owner: string, { comment }: Pick<SlurmJob, 'comment'>): boolean {
  return comment === commentOf(owner) || comment.startsWith(`${commentOf(owner)} `);
}

/** Why a batch script could not begin, as it wrote it behind the comment (`node-place.ts`); empty: it wrote nothing. */
export function saidIn(owner: string, job: Pick<SlurmJob, 'comment'>): string {
  return isOf(owner, job) ? job.comment.slice(commentOf(owner).length + 1) : '';
}

const waiting = ['PENDING', 'CONFIGURING', 'REQUEUED', 'REQUEUE_HOLD', 'REQUEUE_FED', 'SPECIAL_EXIT', 'RESV_DEL_HOLD'];
const running = ['RUNNING', 'SUSPENDED', 'STOPPED', 'RESIZING', 'SIGNALING', 'STAGE_OUT'];

export type Phase = 'waiting' | 'running' | 'completing' | 'ended';

export function phaseOf({ state }: Pick<SlurmJob, 'state'>): Phase {
  if (waiting.includes(state)) return 'waiting';
  if (running.includes(state)) return 'running';
  return state === 'COMPLETING' ? 'completing' : 'ended';
}

/** What one look at the queue shows of agents. */
export type Jobs = ReadonlyMap<AgentId, readonly SlurmJob[]>;

/** A user may have thousands of other jobs. */
export function jobsOf(jobs: readonly SlurmJob[]): Jobs {
  const found = new Map<AgentId, SlurmJob[]>();
  for (const job of jobs) {
    const agent = agentOf(job);
    if (agent === null) continue;
    const own = found.get(agent);
    if (own === undefined) found.set(agent, [job]);
    else own.push(job);
  }
  return found;
}

/** The job of an agent: one that is not over, else the last. A manager that died may have submitted two. */
export function jobOf(agent: AgentId, jobs: Jobs): SlurmJob | null {
  const own = (jobs.get(agent) ?? []).toSorted((a, b) => Number.parseInt(b.id, 10) - Number.parseInt(a.id, 10));
  return own.find((job) => phaseOf(job) !== 'ended') ?? own[0] ?? null;
}

/** How Slurm itself ended a job, in words; undefined: it did not. */
const ends: Readonly<Record<string, string>> = {
  TIMEOUT: 'its time limit was over',
  DEADLINE: 'its deadline was over',
  NODE_FAIL: 'the node failed',
  PREEMPTED: 'another job took its place',
  BOOT_FAIL: 'the node did not boot',
  CANCELLED: 'somebody cancelled it with scancel',
  REVOKED: 'another cluster has it',
};

/** ms for which Slurm may not know a job that it has just taken, and a shared file system may not show a file that was just written. */
export const patience = 10_000;
/** The same after an end that leaves no exit code, mostly. */
const short = 3_000;

/** A successful look at the queue. */
export interface QueueLook {
  /** null: Slurm knows none of this name. */
  readonly job: SlurmJob | null;
  /** ms for which looks have shown it in this phase. */
  readonly since: number;
  /** Whether Slurm was asked after the folder showed that it had begun. */
  readonly afterStart: boolean;
}

/** null: nothing can be said yet. */
export function stateOf(look: FolderLook, { job, since, afterStart }: QueueLook): SandboxSeen['state'] | null {
  if (look.oom) return { kind: 'exited', exit: { kind: 'oom' } };
  if (look.exitCode !== null) return { kind: 'exited', exit: { kind: 'code', code: look.exitCode } };
  if (look.unfit !== null) return { kind: 'exited', exit: exitOf(look, job) };
  const phase = job === null ? null : phaseOf(job);
  // What ran before may still come to its end on its node.
  if (phase === 'waiting' && look.started && afterStart && since >= patience) return secondStart(look, job);
  if (phase === 'waiting' || phase === 'running' || phase === 'completing')
    return { kind: look.where === null ? 'created' : 'running' };
  const mayFollow = job === null || job.state === 'COMPLETED' || look.again;
  if (since < (mayFollow ? patience : short)) return null;
  // It was never begun: if it is still wanted, it is asked for again.
  if (job === null && !look.started) return { kind: 'created' };
  return { kind: 'exited', exit: exitOf(look, job) };
}

/** Of a sandbox whose folder does not say any more what it is. `own`: jobs of its name. */
export function damaged(own: readonly SlurmJob[]): SandboxSeen['state'] {
  if (own.some((job) => phaseOf(job) !== 'ended')) return { kind: 'running' };
  return { kind: 'exited', exit: lost('its folder was damaged when the host went down') };
}

/** What Slurm puts back into its queue after its controller died has run already, and will not run again. */
function secondStart(look: FolderLook, job: SlurmJob | null): SandboxSeen['state'] {
  return { kind: 'exited', exit: lost(`Slurm put it back into its queue after it had begun${at(look, job)}`) };
}

/** The end of a job whose first process left no exit code. */
function exitOf(look: FolderLook, job: SlurmJob | null): Exit {
  const where = at(look, job);
  if (look.again) return lost(`Slurm started it a second time${where}, which onejob refused`);
  if (look.unfit !== null) return lost(`node ${look.unfit.node} is not fit for it: ${look.unfit.why}`);
  if (job === null) return lost(`Slurm no longer knows it${where}, and it left no exit code`);
  if (job.state === 'OUT_OF_MEMORY') return { kind: 'oom' };
  const why = ends[job.state];
  if (why !== undefined) return lost(`Slurm ended it${where}: ${why}`);
  if (job.exit !== undefined) {
    const [code, signal] = job.exit.split(':');
    const how = signal === undefined || signal === '0' ? `exit code ${code}` : `signal ${signal}`;
    return lost(`it left no exit code${where}, and Slurm's accounting says ${job.state} (${how})`);
  }
  // Its batch script was killed, which is how onejob ends it.
  if (job.state === 'FAILED' && look.where !== null) return { kind: 'code', code: 137 };
  if (job.state === 'FAILED' && look.said !== '') return lost(`it could not begin${where}: ${look.said}`);
  const reason = job.reason === 'None' ? '' : ` (${job.reason})`;
  const words = look.said === '' ? '' : `: ${look.said}`;
  return lost(`it ended${where} without an exit code, and Slurm says ${job.state}${reason}${words}`);
}

function at({ where }: FolderLook, job: SlurmJob | null): string {
  const node = where?.place ?? job?.node ?? '';
  return node === '' ? '' : ` on node ${node}`;
}

function lost(reason: string): Exit {
  return { kind: 'lost', reason };
}

/** Why a job waits, for people. The words are Slurm's: https://slurm.schedmd.com/job_reason_codes.html */
export function waitText({ reason, state }: Pick<SlurmJob, 'reason' | 'state'>): string {
  const words: Readonly<Record<string, string>> = {
    Resources: 'waits for resources',
    Priority: 'waits behind jobs with a higher priority',
    None: 'waits for the scheduler',
    Dependency: 'waits for an earlier job of the same name',
  };
  const why = reason === '' ? state : reason;
  if (reason.startsWith('ReqNodeNotAvail')) return `waits for nodes that are down or reserved (${why})`;
  if (reason === 'PartitionConfig') return `asks for more than a node of its partition gives (${why})`;
  return words[reason] ?? `waits (${why})`;
}
