/** Azure's agent pools for the early engine. The placeholder comes first: from then on jobs wait for agents of this kind. */
import { abortable } from '../../base/abortable.ts';
import { hasCode, OnejobError, toFailure } from '../../base/errors.ts';
import type { Variables } from '../../base/variables.ts';
import type { Outcome } from '../../core/job-end.ts';
import type { AgentId, JobId } from '../../core/slot.ts';
import { type AgentContext, foreignPool } from '../../ports/ci-service.ts';
import { readSecret } from '../../schema/secret-reference.ts';
import type { Draft, Entry, EntryKey, Queue, Registry, Remote, RemoteJob, Shown } from '../early/port.ts';
import type { Registrations } from '../early/registrations.ts';
import { askForEnd } from '../early/settling.ts';
import { type AgentInside, type AgentKind, kindOf } from './capabilities.ts';
import type { AzureClient } from './client.ts';
import { createCloudPlaceholders } from './cloud-placeholders.ts';
import { JobEnds } from './job-end.ts';
import type { AzureParts } from './parts.ts';
import { Placeholders } from './placeholder.ts';
import { type AgentPools, type AzurePool, createAgentPools, explainGonePools } from './pools.ts';
import { agentFiles, configuringAgent, readyAgent, type SelfRegistration, startingImage } from './script.ts';
import type { AzureServiceConfig } from './type.ts';
import { type Agent, type Build, type JobRequest, requestState } from './wire.ts';

/** `closing`: aborts when the service ends. */
export class AzureRegistry implements Registry {
  readonly #parts: AzureParts;
  readonly #registrations: Registrations;
  readonly #closing: AbortSignal;
  readonly placeholders: Placeholders;
  readonly #explainsGone: ReturnType<typeof explainGonePools>;
  readonly agentPools: AgentPools;
  readonly #followForClouds: ReturnType<typeof createCloudPlaceholders>;
  readonly builds: Builds;
  readonly ends: JobEnds;
  readonly #kinds = new Map<AgentId, AgentKind>();
  /** Kinds whose placeholder has been updated from an online agent. */
  readonly #taught = new Set<string>();
  /** Unfinished jobs of each agent pool at the last look, by its id. */
  readonly latest = new Map<number, readonly JobRequest[]>();
  /** The last seen version of the agent in images, and whether tokens have entered sandboxes. */
  readonly seen: { insideVersion: string | null; handsOutToken: boolean } = { insideVersion: null, handsOutToken: false };

  constructor(parts: AzureParts, registrations: Registrations, closing: AbortSignal) {
    this.#parts = parts;
    this.#registrations = registrations;
    this.#closing = closing;
    this.placeholders = new Placeholders(this.#parts, this.#registrations);
    this.#explainsGone = explainGonePools(this.#parts.client, this.#parts.log, this.#parts.clock);
    this.agentPools = createAgentPools(this.#parts.client, this.#parts.config.url);
    this.#followForClouds = createCloudPlaceholders(this.#parts, this.placeholders, this.#closing);
    this.builds = new Builds(this.#parts.client);
    this.ends = new JobEnds(this.#parts.client, this.#parts.config.name);
  }

  async list({ name, pools: served }: Queue, signal: AbortSignal): Promise<Shown> {
    try {
      const pool = await this.agentPools.find(name, signal);
      const [agents, requests] = await Promise.all([
        this.#parts.client.agents(pool.id, { assigned: true }, signal),
        this.#parts.client.requests(pool.id, { unfinished: true }, signal),
      ]);
      this.latest.set(pool.id, requests);
      const place = String(pool.id);
      this.placeholders.saw(place, new Set(agents.map(({ name }) => name)));
      return {
        place,
        title: pool.name,
        entries: agents.map((agent) => this.#entryOf(place, agent)),
        unfinished: requests.map((one) => jobIdOf(this.#parts.config.name, one)),
        waiting: this.#waitingOf(agents, requests, served),
      };
    } catch (error) {
      this.agentPools.forget(name);
      throw error;
    }
  }

  async create(context: AgentContext, name: string, signal: AbortSignal): Promise<Draft> {
    const { agent } = context;
    const { queue, tags } = this.#configOf(context.pool);
    const pool = await this.agentPools.find(queue, signal);
    const place = String(pool.id);
    const kind = await kindOf(context, tags, signal);
    const { inside } = kind;
    this.seen.insideVersion = inside.version ?? this.seen.insideVersion;
    const way = wayOf(this.#parts.config.registration, inside, context.pool);
    // `closing` and not `signal`: others wait for the same placeholder.
    await abortable(this.placeholders.ensure(pool.id, kind, this.#closing), signal);
    this.#kinds.set(agent, kind);
    const { root, uid, isWritable } = inside;
    const script = { root: root ?? '', uid, isWritable, workspace: context.workspace, capabilities: kind.told };
    if (way !== 'manager') {
      const warning = 'the image has no working agent of its own, so its start script gets the token, which jobs can read';
      if (this.#parts.config.registration === 'auto' && !this.seen.handsOutToken)
        this.#parts.log.warn(warning, { pool: context.pool });
      this.seen.handsOutToken = true;
      const token = await tokenOf(this.#parts.config, this.#parts.variables);
      const self: SelfRegistration = { url: this.#parts.config.url, pool: queue, name, token };
      const own = way === 'in-agent' ? configuringAgent(script, self) : startingImage(inside.start ?? '', context.workspace, self);
      return { place, create: async () => ({ id: null, script: own, files: null }) };
    }
    const key = await this.#parts.makeKey();
    const says = { ...this.placeholders.learned(kind.set), ...kind.all, 'Agent.Name': name, 'Agent.ComputerName': context.name };
    const version = inside.version ?? '0.0.0';
    const body = { name, version, osDescription: 'Linux', systemCapabilities: says, publicKey: key.publicKey };
    return {
      place,
      create: async (inner) => {
        const made = await this.#parts.client.addAgent(pool.id, body, inner);
        const files = agentFiles(made, pool, { url: this.#parts.config.url, name, key });
        return { id: String(made.id), script: readyAgent(script, files), files: null };
      },
    };
  }

  async find(which: EntryKey, signal: AbortSignal): Promise<Entry | null> {
    const { place } = which;
    const find = async (pool: number): Promise<Agent | null> => {
      if ('id' in which) return this.#parts.client.agent(pool, Number(which.id), { assigned: true }, signal);
      const found = await this.#parts.client.agents(pool, { name: which.name, assigned: true }, signal);
      return found.find(({ name }) => name === which.name) ?? null;
    };
    const agent = await this.#within(place, find, null, signal);
    return agent === null ? null : this.#entryOf(place, agent);
  }

  remove({ place, id }: Remote, signal: AbortSignal): Promise<'removed' | 'absent' | 'busy'> {
    const remove = async (pool: number) => {
      const answer = await this.#parts.client.deleteAgent(pool, Number(id), signal);
      return typeof answer === 'object' ? 'busy' : answer === 'deleted' ? 'removed' : 'absent';
    };
    return this.#within(place, remove, 'absent', signal);
  }

  disable({ place, id }: Remote, disabled: boolean, signal: AbortSignal): Promise<'done' | 'absent'> {
    return this.#within(place, (pool) => this.#parts.client.setEnabled(pool, Number(id), !disabled, signal), 'absent', signal);
  }

  async lastJob({ place, id }: Remote, signal: AbortSignal): Promise<RemoteJob | null> {
    const requests = await this.#parts.client.requests(Number(place), { agent: Number(id) }, signal);
    const begun = requests.filter((one) => one.receiveTime !== null).sort((a, b) => b.requestId - a.requestId)[0];
    if (begun === undefined) return null;
    await this.ends.ask(begun, signal);
    const job = this.#remoteJob(begun);
    if (!this.ends.isOpen(begun)) return job;
    // What has removed the agent is over by then.
    return { ...job, describe: (inner) => this.#describeEnd(begun, AbortSignal.any([inner, this.#closing])) };
  }

  /** Updates each kind's placeholder once with what an online agent says. */
  async follow(shown: Shown, _: unknown, signal: AbortSignal): Promise<void> {
    const { place, title, entries } = shown;
    await this.#followForClouds(shown, signal);
    const pool = Number(place);
    for (const { id, name, status } of entries) {
      const kind = this.#kinds.get(this.#registrations.agentNames.agentOf(name) ?? '');
      if (kind === undefined || status !== 'online') continue;
      const lesson = `${kind.set} ${JSON.stringify(kind.shared)}`;
      if (this.#taught.has(lesson)) continue;
      this.#taught.add(lesson);
      try {
        const whole = await this.#parts.client.agent(pool, Number(id), { capabilities: true }, signal);
        if (whole !== null) await this.placeholders.learn(pool, kind.set, whole, signal);
      } catch (error) {
        this.#taught.delete(lesson);
        signal.throwIfAborted();
        this.#parts.log.warn('placeholder not updated', { place: title, reason: toFailure(error).message });
      }
    }
  }

  forget(agent: AgentId): void {
    this.#kinds.delete(agent);
  }

  #configOf(name: string): AzurePool {
    const pool = this.#parts.pools.find((one) => one.name === name);
    if (pool === undefined) throw foreignPool(this.#parts.config.name, name);
    return pool;
  }

  #remoteJob(request: JobRequest) {
    return jobOf(request, this.#parts.config.name, { builds: this.builds, ends: this.ends });
  }

  #entryOf(place: string, { id, name, status, assignedRequest }: Agent): Entry {
    return { place, id: String(id), name, status, job: assignedRequest === null ? null : this.#remoteJob(assignedRequest) };
  }

  /** Whether there is more now of a job that has failed. */
  async #describeEnd(request: JobRequest, signal: AbortSignal): Promise<boolean> {
    await this.builds.of(request, signal);
    await askForEnd(
      { clock: this.#parts.clock, isOpen: () => this.ends.isOpen(request), ask: () => this.ends.ask(request, signal) },
      signal,
    );
    return true;
  }

  /** The answer of a call within an agent pool; `absent` when that is gone for good. */
  async #within<T>(place: string, call: (pool: number) => Promise<T>, absent: T, signal: AbortSignal): Promise<T> {
    const pool = Number(place);
    try {
      return await call(pool);
    } catch (error) {
      if (await this.#explainsGone(error, pool, signal)) return absent;
      throw error;
    }
  }

  /** Which jobs wait for which pools, by the agents and placeholders that match them. */
  #waitingOf(agents: readonly Agent[], requests: readonly JobRequest[], served: readonly string[]) {
    const standsFor = new Map<number, readonly string[]>();
    const booked = new Set(this.#registrations.open().map(({ name }) => name));
    for (const { id, name } of agents) {
      const agent = this.#registrations.agentNames.agentOf(name);
      const one = agent !== null ? this.#parts.slots.poolOf(agent) : this.placeholders.poolOf(name);
      if (one !== null) standsFor.set(id, [one]);
      // A placeholder of an earlier manager, until this one has made its first agent.
      else if (this.#registrations.agentNames.isPlaceholder(name) && booked.has(name)) standsFor.set(id, served);
    }
    return requests
      .filter((one) => requestState(one) === 'waiting')
      .map((request) => {
        const { matchedAgents, matchesAllAgentsInPool } = request;
        const isAnyones = matchesAllAgentsInPool || matchedAgents === null;
        const isFor = (name: string): boolean => isAnyones || matchedAgents.some(({ id }) => standsFor.get(id)?.includes(name));
        return {
          job: this.#remoteJob(request),
          pools: served.filter(isFor),
          isForOthers: isAnyones || matchedAgents.length > 0,
        };
      });
  }
}

/** The token for agents that register themselves. @throws OnejobError E_CONFIG, E_SECRET */
async function tokenOf({ name, credential }: AzureServiceConfig, variables: Variables | undefined): Promise<string> {
  if (credential.kind === 'pat') return (await readSecret(credential.token, variables)).trim();
  const hint = 'Use "registration: manager", or set "token".';
  throw new OnejobError('E_CONFIG', `Agents of service ${name} cannot register themselves with a service principal.`, { hint });
}

/** Who registers an agent: what config asks for, if the image allows it. @throws OnejobError E_AGENT_ABSENT if it does not */
function wayOf(asked: AzureServiceConfig['registration'], inside: AgentInside, pool: string): 'manager' | 'in-agent' | 'image' {
  const way = asked === 'auto' ? (inside.version === null ? 'image' : 'manager') : asked;
  const absent = (what: string, hint: string): never => {
    throw new OnejobError('E_AGENT_ABSENT', `Cannot create agents for pool ${pool}: ${what}`, { hint });
  };
  if (way === 'image') {
    if (inside.start === null)
      return absent(
        'its image has neither an agent nor a start script of its own in /azp or /.',
        'Let onejob build the image ("image: { base: … }"), or put the agent into /opt/agent.',
      );
    return way;
  }
  if (inside.root === null)
    return absent(
      'its image has no agent (onejob looked for bin/Agent.Listener in /opt/agent, /azp and others).',
      'Let onejob build the image ("image: { base: … }"), or set ONEJOB_AGENT_ROOT in the pool\'s env to the agent\'s folder.',
    );
  if (inside.version === null)
    return absent(
      `the agent in ${inside.root} does not run: ${(inside.problem ?? 'it reports no version').slice(0, 300)}.`,
      'Usually a library is missing in the image; run "bin/Agent.Listener --version" in it.',
    );
  if (way === 'in-agent' && !inside.isWritable)
    return absent(
      `the image's user (${inside.uid}) cannot write to ${inside.root}, where the agent would register itself.`,
      'Make that user the owner of the folder in the image, set "user" in the pool, or use "registration: manager".',
    );
  return way;
}

/** `service`: its name in the config. */
function jobIdOf(service: string, request: Pick<JobRequest, 'requestId'>): JobId {
  return `${service}-${request.requestId}`;
}

/** `TaskResult` of the distributed task API. `abandoned`: its agent did not renew its lock. */
const outcomes: ReadonlyMap<string, Outcome> = new Map([
  ['succeeded', 'passed'],
  ['succeededWithIssues', 'passed'],
  ['failed', 'failed'],
  ['canceled', 'cancelled'],
  ['skipped', 'cancelled'],
  ['abandoned', 'lost'],
]);

/** What was read of jobs beyond their requests. */
interface Read {
  readonly builds: Pick<Builds, 'known' | 'of'>;
  readonly ends: Pick<JobEnds, 'of'>;
}

export function jobOf(request: JobRequest, service: string, { builds, ends }: Read): RemoteJob {
  return {
    id: jobIdOf(service, request),
    state: requestState(request),
    facts() {
      const build = builds.known(request);
      const definition = request.definition?.name ?? build?.definition?.name ?? null;
      const number = build?.buildNumber ?? request.owner?.name ?? null;
      const name = request.jobName ?? null;
      const outcome = outcomes.get(request.result ?? '') ?? null;
      const { failedIn, note } = outcome === 'failed' ? ends.of(request) : { failedIn: null, note: null };
      const parts = [definition, number === null ? null : `#${number}`, name].filter((part) => part !== null);
      return {
        title: parts.length === 0 ? `request ${request.requestId}` : parts.join(' '),
        definition,
        build: number,
        repository: build?.repository?.name ?? build?.repository?.id ?? null,
        branch: build?.sourceBranch?.replace(/^refs\/heads\//, '') ?? null,
        reason: build?.reason ?? null,
        link: request.owner?.link ?? build?.link ?? request.definition?.link ?? null,
        demands: request.demands,
        result: request.result,
        outcome,
        failedIn,
        note,
        queuedAt: request.queueTime,
        startedAt: request.receiveTime ?? request.assignTime,
        endedAt: request.finishTime,
      };
    },
    ...(builds.known(request) === null && { describe: async (signal) => (await builds.of(request, signal)) !== null }),
  };
}

const remembered = 256;
/** How often onejob asks for an unreadable build. */
const tries = 3;

/** The build of a job, asked for once; never again in a project where the credential turned out to have no right to it. */
export class Builds {
  readonly #client: Pick<AzureClient, 'build'>;
  /** What the service said, and how often it may still be asked. */
  readonly #read = new Map<string, { readonly build: Build | null; readonly left: number }>();
  readonly #denied = new Set<string>();

  constructor(client: Pick<AzureClient, 'build'>) {
    this.#client = client;
  }

  /** null: the job belongs to no build, or nobody may read it. */
  async of(request: JobRequest, signal: AbortSignal): Promise<Build | null> {
    const place = placeOf(request);
    if (place === null) return null;
    const { key, project, id } = place;
    let { build, left } = this.#read.get(key) ?? { build: null, left: tries };
    if (this.#denied.has(project) || left === 0) return build;
    try {
      build = await this.#client.build(project, id, signal);
      left = 0;
    } catch (error) {
      signal.throwIfAborted();
      // The build is only for people: its job runs anyway.
      if (hasCode(error, 'E_CI_DENIED')) this.#denied.add(project);
      const now = this.#read.get(key);
      // Another look at the same build has found it meanwhile.
      if (now?.left === 0) return now.build;
      left -= 1;
    }
    this.#read.set(key, { build, left });
    for (const old of [...this.#read.keys()].slice(0, -remembered)) this.#read.delete(old);
    return build;
  }

  known(request: JobRequest): Build | null {
    const place = placeOf(request);
    return place === null ? null : (this.#read.get(place.key)?.build ?? null);
  }

  /** Whether the credential lacks the right to it, in any project. */
  get isDenied() {
    return this.#denied.size > 0;
  }
}

function placeOf({ planType, scopeId, owner }: JobRequest): { key: string; project: string; id: number } | null {
  if (scopeId === null || owner === null || (planType !== null && planType !== 'Build')) return null;
  return { key: `${scopeId} ${owner.id}`, project: scopeId, id: owner.id };
}
