/**
 * Buildkite without reservations: the agent in each sandbox registers with the service's token, takes one job and ends. onejob asks
 * the service only for counts, and learns the rest from the agents' standard error and exits.
 */
import { stripVTControlCharacters } from 'node:util';
import { OnejobError } from '../../../base/errors.ts';
import type { PoolConfig } from '../../../config/config.ts';
import { sleep } from '../../../core/clock.ts';
import type { AgentId, JobId } from '../../../core/slot.ts';
import { type AgentContext, type CiService, foreignPool, type Registration } from '../../../ports/ci-service.ts';
import type { JobEnd } from '../../kit/job-rows.ts';
import { whyEnding } from '../../kit/last-words.ts';
import type { SlotFacts } from '../../parts.ts';
import { Front, type FrontParts } from '../front.ts';
import { buildkiteEnd } from '../jobs/outcome.ts';
import { scriptFor } from './script.ts';

/**
 * What an agent logs (v3.137 `core/client.go`, `agent/agent_worker_action.go`, `agent/run_job.go`; the alternatives are those of
 * v3.62 to v4). A job that can write to its agent's standard error can forge these lines, but only for its own agent.
 */
export type AgentWord =
  | { readonly said: 'online' }
  /** It has a job, and has yet to accept it. */
  | { readonly said: 'assigned'; readonly job: JobId }
  /** The job failed to start; the agent asks for another one. */
  | { readonly said: 'failed' }
  /** It runs the job that it was assigned last. `build`: address of its build. */
  | { readonly said: 'began'; readonly build: string | null }
  | { readonly said: 'exited'; readonly code: number }
  | { readonly said: 'finished' };

/** null for any other line. Lines begin with time, level and name, and may have colours and trailing spaces. */
export function agentWord(line: string): AgentWord | null {
  const text = stripVTControlCharacters(line).trimEnd();
  if (/ (Successfully registered agent ".*" with tags \[|Waiting for (instructions|work)\.\.\.$)/.test(text))
    return { said: 'online' };
  const job = / Assigned job ([A-Za-z0-9-]{1,64})\. Accepting\.\.\.$/.exec(text)?.[1];
  if (job !== undefined) return { said: 'assigned', job };
  if (/ failed to (accept|initialize|run) job: /i.test(text)) return { said: 'failed' };
  const began = / Starting job (?:at |[A-Za-z0-9-]+(?: for build at |$))(\S*)$/.exec(text);
  if (began !== null) return { said: 'began', build: /^https?:\/\/[^\s"'<>#]+/.exec(began[1] ?? '')?.[0] ?? null };
  const code = / Process with PID: \d+ finished with Exit Status: (-?\d{1,6}), Signal: \S+$/.exec(text)?.[1];
  if (code !== undefined) return { said: 'exited', code: Number(code) };
  return / Finished job (at |[A-Za-z0-9-]+( for build at |$))\S*$/.test(text) ? { said: 'finished' } : null;
}

/** What an agent has reported. */
interface Heard {
  assigned: JobId | null;
  job: JobId | null;
  isFinished: boolean;
  code: number | null;
  isStopped: boolean;
  /** Cancels its timer. */
  callOff: () => void;
}

/** ms that an agent that was told to end may take to leave or report a job, and to accept one. */
const [leaving, accepting] = [30_000, 600_000];
/** ms in which an agent ends by itself after its job, including its clean-up. */
const tidying = 300_000;
/** How many agents are remembered: onejob may ask about one twice. */
const remembered = 1_000;

export type InAgentParts = FrontParts & { readonly slots: Pick<SlotFacts, 'poolOf' | 'silentFor'> };

export function createInAgent(parts: InAgentParts): CiService {
  return new InAgent(parts).asService();
}

class InAgent {
  readonly #parts: InAgentParts;
  readonly #front: Front;
  readonly #agents = new Map<AgentId, Heard>();

  constructor(parts: InAgentParts) {
    this.#parts = parts;
    this.#front = new Front(parts);
    const callOffAll = (): void => {
      for (const { callOff } of this.#agents.values()) callOff();
    };
    this.#front.signal.addEventListener('abort', callOffAll, { once: true });
  }

  asService(): CiService {
    return {
      ...this.#front.service,
      capabilities: { binds: 'early', standsForSlots: false, terms: 2, poolTimeout: true, jobOnStdout: true },
      jobs: null,
      register: (context) => this.#register(context),
      listen: (agent) => this.#listen(agent),
      ending: async ({ agent, job, why }) => {
        const words = job === null ? null : whyEnding(why, this.#poolOf(agent));
        if (job === null || words === null) return;
        this.#heardOf(agent).isStopped = true;
        this.#parts.rows.note(job, words);
      },
      retire: (agent, signal) => this.#retire(agent, signal),
      settle: async ({ agent, job: seen }) => {
        const heard = this.#heardOf(agent);
        for (const id of new Set([seen, heard.job])) if (id !== null) this.#parts.rows.left(id, endFor(heard));
      },
      deregister: async ({ agent }) => {
        const { job: ran, callOff } = this.#heardOf(agent);
        callOff();
        return { ran };
      },
      close: async () => this.#front.close(),
    };
  }

  #heardOf(agent: AgentId): Heard {
    const known = this.#agents.get(agent);
    if (known !== undefined) return known;
    const made: Heard = { assigned: null, job: null, code: null, isFinished: false, isStopped: false, callOff: () => {} };
    this.#agents.set(agent, made);
    for (const old of [...this.#agents.keys()].slice(0, -remembered)) this.#agents.delete(old);
    return made;
  }

  #poolOf(agent: AgentId): PoolConfig | undefined {
    return this.#front.pools.get(this.#parts.slots.poolOf(agent) ?? '');
  }

  /** Each agent has one timer. */
  #wait(agent: AgentId, ms: number, then: () => void): void {
    const heard = this.#heardOf(agent);
    heard.callOff();
    if (!this.#front.signal.aborted) heard.callOff = this.#parts.clock.after(ms, then);
  }

  async #register(context: AgentContext): Promise<Registration> {
    const { config, token } = this.#parts;
    const pool = this.#front.pools.get(context.pool);
    if (pool === undefined) throw foreignPool(config.name, context.pool);
    const about = { token: (await token()).trim(), endpoint: config.endpoint, isFiltered: false, job: null };
    return { id: null, script: scriptFor(context, pool, about, { note: null, secrets: [] }), files: null };
  }

  #listen(agent: AgentId): (line: string) => void {
    this.#wait(agent, this.#parts.config.bootTimeout, () => this.#reportIfSilent(agent));
    return (line) => {
      const word = agentWord(line);
      if (word !== null) this.#take(agent, word);
    };
  }

  #reportIfSilent(agent: AgentId): void {
    const ms = this.#parts.slots.silentFor(agent);
    if (ms === null) return;
    const message = `Agent ${agent} was started ${Math.round(ms / 1000)} s ago and has not come online at ${this.#parts.config.endpoint}. Check whether it can reach that address from inside its sandbox, and whether its token is valid there.`;
    this.#front.emit({ kind: 'silent', agent, failure: { code: 'E_AGENT_SILENT', message, retry: true } });
  }

  /** A restarted manager reads the same lines again. */
  #take(agent: AgentId, word: AgentWord): void {
    const heard = this.#heardOf(agent);
    switch (word.said) {
      case 'online':
        heard.callOff();
        this.#front.emit({ kind: 'online', agent });
        return;
      case 'assigned':
        heard.assigned = word.job;
        return;
      case 'failed':
        heard.assigned = null;
        if (heard.job !== null) this.#endOutlived(agent);
        return;
      case 'began':
        this.#began(agent, heard, word.build);
        return;
      case 'exited':
        heard.code = word.code;
        return;
      case 'finished':
        heard.isFinished = true;
        this.#endOutlived(agent);
        return;
    }
  }

  #began(agent: AgentId, heard: Heard, build: string | null): void {
    const { rows } = this.#parts;
    const { assigned: job, job: before } = heard;
    if (job === null) return;
    heard.callOff();
    // The agent has dropped a job that it could not begin.
    if (before !== null && before !== job) rows.left(before, lost);
    [heard.assigned, heard.job, heard.isFinished, heard.code] = [null, job, false, null];
    rows.reserved({ id: job, env: aboutOf(job, build) }, this.#poolOf(agent)?.name ?? '');
    rows.runs(job, agent);
    this.#front.emit({ kind: 'jobSeen', agent, job });
  }

  /** If the service misses the end of its job, an agent waits for another. */
  #endOutlived(agent: AgentId): void {
    this.#wait(agent, tidying, () => {
      this.#parts.log.warn('onejob ends an agent that outlived its job', { agent });
      this.#front.emit({ kind: 'jobDone', agent });
    });
  }

  /** After a TERM it takes no more jobs. An agent without a job is gone before this ends, which aborts it. */
  async #retire(agent: AgentId, signal: AbortSignal): Promise<JobId> {
    const { clock } = this.#parts;
    const heard = this.#heardOf(agent);
    const since = clock.now();
    while (heard.job === null && clock.now() - since < (heard.assigned === null ? leaving : accepting)) {
      await sleep(clock, 250, signal);
      signal.throwIfAborted();
    }
    if (heard.job !== null) return heard.job;
    const message = `Agent ${agent} was told to end after its job, if it has one; it reports no job, and still runs.`;
    throw new OnejobError('E_CI_UNREACHABLE', message, { hint: 'onejob asks again.', retry: true });
  }
}

const lost: JobEnd = { word: 'lost', outcome: 'lost' };

function endFor({ isFinished, isStopped, code }: Heard): JobEnd {
  // By its time or disk limit, or because onejob was told to end it.
  if (isStopped) return { word: 'stopped', outcome: null };
  if (!isFinished) return lost;
  return buildkiteEnd('finished', code === null ? null : { kind: 'code', code });
}

/** What an agent reports about a job: its build, whose address ends in `ORGANISATION/PIPELINE/builds/NUMBER`. */
function aboutOf(job: JobId, build: string | null): Readonly<Record<string, string>> {
  const [, organisation, pipeline, number] = /\/([^/]+)\/([^/]+)\/builds\/(\d+)$/.exec(build ?? '') ?? [];
  return {
    BUILDKITE_LABEL: `job ${job.slice(0, 8)}`,
    ...(build !== null && { BUILDKITE_BUILD_URL: build }),
    ...(organisation !== undefined && { BUILDKITE_ORGANIZATION_SLUG: organisation }),
    ...(pipeline !== undefined && { BUILDKITE_PIPELINE_SLUG: pipeline }),
    ...(number !== undefined && { BUILDKITE_BUILD_NUMBER: number }),
  };
}
