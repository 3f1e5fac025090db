/**
 * The Stacks API: lists waiting jobs, reserves them for this host, and makes a token that acquires one, or ends one without an
 * agent. Calls and bounds: docs page `apis/agent_api/stacks`; field names: its public Go client. All of a job is foreign.
 */
import { hash } from 'node:crypto';
import { z } from 'zod';
import { hasCode, OnejobError } from '../../../base/errors.ts';
import type { JobId } from '../../../core/slot.ts';
import { asksFor } from '../../../http/exchange.ts';
import { serviceId } from '../../../http/service-id.ts';
import type { OpenParts } from '../../parts.ts';
import { type ApiParts, type BuildkiteCall, type Called, createCaller, escapeId, longestWait } from '../api.ts';
import { cut, type GivenJob } from '../jobs/job-facts.ts';

/** The stage of a job by its state at the service; null: unknown. Missing jobs are `gone`. */
export function stageOf(state: string): Stage | null {
  return stageByState.get(state) ?? null;
}

type Stage = 'waiting' | 'reserved' | 'running' | 'ending' | 'over';

/** From the REST API's page on jobs; `gone` is ours. */
const stages: Readonly<Record<Stage, string>> = {
  waiting: 'pending waiting blocked limiting limited platform_limiting scheduled',
  reserved: 'reserved',
  running: 'assigned accepted running',
  ending: 'canceling timing_out',
  over: 'finished canceled timed_out expired skipped broken waiting_failed blocked_failed gone',
};
const stageByState: ReadonlyMap<string, Stage> = new Map(
  (Object.entries(stages) as [Stage, string][]).flatMap(([stage, states]) => states.split(' ').map((state) => [state, stage])),
);

/** ms until a token that was refused is tried again; another one is at once. */
const refusedWait = 60_000;

/** Longest texts that the service accepts. */
const [longestDetail, longestNote] = [4000, 250];

const id = serviceId;
const registered = z.object({ id: id.catch('') });
const scheduledJob = z
  .object({ id, priority: z.number().catch(0), agent_query_rules: z.array(z.string()).nullish() })
  .transform(({ agent_query_rules, ...rest }) => ({ ...rest, rules: agent_query_rules ?? [] }));
/** `rules`: `key=value` each, as an agent's tags must be. */
export type ScheduledJob = Readonly<z.output<typeof scheduledJob>>;
const page = z.object({
  jobs: z.array(z.unknown()),
  page_info: z.object({ has_next_page: z.boolean().catch(false), end_cursor: z.string().nullish() }).nullish(),
  // Docs and clients name it differently.
  cluster_queue: z.object({ dispatch_paused: z.boolean().nullish(), paused: z.boolean().nullish() }).nullish(),
});
const reservation = z.object({ reserved: z.array(id) });
const shown = z.object({ id, env: z.record(z.string(), z.unknown()).nullish() });
const states = z.object({ states: z.record(id, z.string()) });
const tokens = z.object({
  job_acquisition_tokens: z.array(z.object({ job_uuid: id, job_acquisition_token: z.string().regex(/^[\x21-\x7e]{1,4096}$/) })),
});

export type Stacks = ReturnType<typeof createStacks>;

/** Methods throw OnejobError E_CI_*, `LaterError` (the service says when to ask again), E_SECRET, or `signal`'s reason. */
export function createStacks(parts: ApiParts & { readonly token: () => Promise<string> }) {
  const { clock } = parts;
  const { call, read } = createCaller(parts);
  /** The refused token, and until when it is not sent again. */
  let refused: { readonly token: string; readonly until: number; readonly called: Called } | null = null;

  async function ask(what: BuildkiteCall, signal: AbortSignal): Promise<Called> {
    const now = (await parts.token()).trim();
    if (refused?.token === now && clock.now() < refused.until) return refused.called;
    const called = await call(what, now, signal);
    refused = !called.ok && called.status === 401 ? { token: now, until: clock.now() + refusedWait, called } : null;
    return called;
  }

  const at = (stack: string, what: string): string => `stacks/${escapeId(stack)}/${what}`;

  return {
    /** Id at the service. Registering a known stack again changes nothing. */
    async register(stack: string, queue: string, metadata: Readonly<Record<string, string>>, signal: AbortSignal): Promise<string> {
      const doing = `register the stack "${stack}" for queue "${queue}"`;
      const body = { key: stack, type: 'custom', queue_key: queue, metadata };
      return read(await ask({ method: 'POST', path: 'stacks/register', body, doing }, signal), registered).id;
    },
    /** A stack that does not exist is not an error. */
    async deregister(stack: string, signal: AbortSignal): Promise<void> {
      const called = await ask({ method: 'POST', path: at(stack, 'deregister'), doing: `deregister the stack "${stack}"` }, signal);
      if (!called.ok && called.status !== 404) throw called.error;
    },
    /**
     * One page of waiting jobs. `odd`: how many entries have no valid id. `next`: of the next page, or null. `paused`:
     * there are no jobs now. `wait`: ms to wait.
     */
    async scheduled(
      stack: string,
      queue: string,
      { limit, after }: { readonly limit: number; readonly after: string | null },
      signal: AbortSignal,
    ) {
      const doing = `list the jobs of queue "${queue}"`;
      const query = new URLSearchParams({ queue_key: queue, limit: String(limit), ...(after !== null && { after }) });
      const called = await ask({ method: 'GET', path: `${at(stack, 'scheduled-jobs')}?${query}`, doing }, signal);
      const { jobs, page_info, cluster_queue } = read(called, page);
      const known = jobs.flatMap((each) => scheduledJob.safeParse(each).data ?? []);
      return {
        jobs: known,
        odd: jobs.length - known.length,
        next: page_info?.has_next_page === true ? (page_info.end_cursor ?? null) : null,
        paused: cluster_queue?.dispatch_paused === true || cluster_queue?.paused === true,
        wait: called.ok ? Math.min(asksFor(called.headers, clock.wall()) ?? 0, longestWait) : 0,
      };
    },
    /** Those that are ours for so many seconds from now on. Reserving one of ours again extends it. */
    async reserve(stack: string, jobs: readonly JobId[], seconds: number, signal: AbortSignal): Promise<ReadonlySet<JobId>> {
      const doing = `reserve ${jobs.length === 1 ? `job ${jobs[0]}` : `${jobs.length} jobs`}`;
      const body = { job_uuids: jobs, reservation_expiry_seconds: seconds };
      const called = await ask({ method: 'PUT', path: at(stack, 'scheduled-jobs/batch-reserve'), body, doing }, signal);
      return new Set(read(called, reservation).reserved);
    },
    /** null: there is no such job. */
    async show(stack: string, job: JobId, signal: AbortSignal): Promise<GivenJob | null> {
      const doing = `read job ${job}`;
      const called = await ask({ method: 'GET', path: at(stack, `jobs/${escapeId(job)}`), doing }, signal);
      if (!called.ok && called.status === 404) return null;
      const found = read(called, shown);
      const env = Object.entries(found.env ?? {}).filter((pair): pair is [string, string] => typeof pair[1] === 'string');
      return { id: job, env: Object.fromEntries(env) };
    },
    /** In the service's words: `scheduled`, `reserved`, `running`, `canceled`, …; none for jobs that it does not know. */
    async states(stack: string, jobs: readonly JobId[], signal: AbortSignal): Promise<ReadonlyMap<JobId, string>> {
      const doing = 'query the state of jobs';
      const called = await ask({ method: 'POST', path: at(stack, 'jobs/get-states'), body: { job_uuids: jobs }, doing }, signal);
      return new Map(Object.entries(read(called, states).states));
    },
    /** Registers one agent for this one job; null: the job is not reserved by this stack. */
    async token(stack: string, job: JobId, seconds: number, signal: AbortSignal): Promise<string | null> {
      const doing = `get a token that acquires job ${job}`;
      const body = { job_uuids: [job], token_lifetime_seconds: seconds };
      const called = await ask({ method: 'POST', path: at(stack, 'job-acquisition-tokens'), body, doing }, signal);
      return read(called, tokens).job_acquisition_tokens.find(({ job_uuid }) => job_uuid === job)?.job_acquisition_token ?? null;
    },
    /** Ends a reserved job as failed, without an agent. False: the service has ended it, or given it to another. */
    async finish(stack: string, job: JobId, detail: string, signal: AbortSignal): Promise<boolean> {
      const body = { exit_status: -1, detail: cut(detail, longestDetail) };
      const what: BuildkiteCall = {
        method: 'POST',
        path: at(stack, `jobs/${escapeId(job)}/finish`),
        body,
        doing: `end job ${job}`,
      };
      const called = await ask(what, signal);
      if (!called.ok && (called.error.retry || called.status === 401 || called.status === 403)) throw called.error;
      return called.ok;
    },
    /** Shows a line on the pages of jobs. */
    async notify(stack: string, notes: readonly { readonly job: JobId; readonly detail: string }[], signal: AbortSignal) {
      const timestamp = new Date(clock.wall()).toISOString();
      const notifications = notes.map(({ job, detail }) => ({ job_uuid: job, detail: cut(detail, longestNote), timestamp }));
      const doing = 'report why jobs wait';
      const called = await ask({ method: 'POST', path: at(stack, 'notifications'), body: { notifications }, doing }, signal);
      if (!called.ok) throw called.error;
    },
  };
}

/** Their prefix among registrations of agents. */
const prefix = 'stack ';

export type StackEntry = ReturnType<typeof createStackEntry>;

/**
 * The stack by which the service knows this host, one for all queues. It is stored before the service is asked, so that onejob
 * finds and removes a stack that was made right before a crash (S4). `service`: its name in the config.
 */
export function createStackEntry(
  service: string,
  stacks: Pick<Stacks, 'register' | 'deregister'>,
  { host, version, store, clock }: Pick<OpenParts, 'store' | 'clock'> & { readonly host: string; readonly version: string },
) {
  const { registrations, owner } = store;
  const write = (change: () => void): void => store.transaction({ durable: false }, change);
  const words = [owner.slice(0, 8), host, service].map((word) => word.replaceAll(/[^A-Za-z0-9]+/g, '-').slice(0, 20));
  const mark = hash('sha256', JSON.stringify([owner, host, service])).slice(0, 8);
  const key = ['onejob', ...words, mark].join('-');
  const agent = `${prefix}${key}`;
  let isKnown = false;
  let registering: Promise<void> | null = null;

  async function make(queue: string, signal: AbortSignal): Promise<void> {
    write(() => {
      // A removed row never comes back, which is right for agents.
      if (registrations.get(agent)?.state === 'removed') registrations.forget(agent);
      registrations.intend({ agent, service, place: queue, name: key, placeholder: true }, clock.wall());
    });
    await store.sync();
    const remote = await stacks.register(key, queue, { host, onejob: version }, signal);
    write(() => registrations.made(agent, remote, clock.wall()));
    isKnown = true;
  }

  return {
    /** At most 80 characters, and different on every host: registering the same key takes a stack over. */
    key,
    /** Whether the service knows it, as far as was heard. */
    get isKnown() {
      return isKnown;
    },
    /** The service may no longer know it. Who is registering it finds out. */
    doubt(): void {
      if (registering === null) isKnown = false;
    },
    /**
     * Registers it once for all who ask; with one queue it may list any of its cluster. @throws OnejobError E_CI_*, or the reason of
     * `signal`
     */
    async register(queue: string, signal: AbortSignal): Promise<void> {
      registering ??= make(queue, signal).finally(() => {
        registering = null;
      });
      await registering;
    },
    /** Removes it and those of earlier configs; throws the first failure after trying all. @throws OnejobError E_CI_* */
    async forget(signal: AbortSignal): Promise<void> {
      const failures: unknown[] = [];
      isKnown = false;
      for (const one of registrations.open(service)) {
        if (!one.agent.startsWith(prefix)) continue;
        try {
          await stacks.deregister(one.name, signal);
          write(() => registrations.removed(one.agent, clock.wall()));
        } catch (error) {
          signal.throwIfAborted();
          failures.push(error);
        }
      }
      if (failures.length > 0) throw failures[0];
    },
  };
}

/** Adds to a denial what a stack needs besides the right to register. An invalid token is explained already. */
export function whyRefused(error: unknown): unknown {
  if (!hasCode(error, 'E_CI_DENIED')) return error;
  const needs = 'A stack needs the token of a cluster, and an organisation can have only so many stacks:';
  const hint = `${error.hint ?? ''} ${needs} remove old ones on its website, or ask Buildkite for more.`.trimStart();
  return new OnejobError(error.code, error.message, { hint, retry: error.retry, cause: error });
}
