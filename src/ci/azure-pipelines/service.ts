/**
 * Azure Pipelines as a CI service. It binds early: an agent must be online to be given a job, so each standby is made known to the
 * service while it waits, with a key of its own; the credential never leaves the manager.
 */
import type { AzureServiceConfig } from '../../config/config.ts';
import type { Clock } from '../../core/clock.ts';
import type { AgentId, Exit, Failure, JobId } from '../../core/slot.ts';
import { OnejobError, toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import type { Store } from '../../store/store.ts';
import type { CiEvent, CiService, ServiceJob } from '../ci-service.ts';
import { createBuilds } from './builds.ts';
import type { AzureClient } from './client.ts';
import { keepDiagnostics } from './diagnostics.ts';
import { findings } from './doctor.ts';
import { agentFiles } from './files.ts';
import { jobIdOf, jobOf } from './jobs.ts';
import { makeAgentKey } from './key.ts';
import { type AgentKind, kindOf } from './kind.ts';
import { createMarks } from './marks.ts';
import { choosePackage } from './package.ts';
import { createPlaceholders } from './placeholder.ts';
import { createAgentPools } from './pools.ts';
import { createRegistrar } from './registrar.ts';
import { configuringAgent, readyAgent, type SelfRegistration, startingImage } from './script.ts';
import { createSweep } from './sweep.ts';
import { type Seen, Watch } from './watch.ts';
import type { Agent, JobRequest } from './wire.ts';

/** A pool of the config that this service serves. */
export interface AzurePool {
  readonly name: string;
  /** Name of the service's agent pool. */
  readonly queue: string;
  readonly tags: readonly string[];
}

export interface AzureParts {
  readonly config: AzureServiceConfig;
  readonly pools: readonly AzurePool[];
  readonly store: Pick<Store, 'registrations' | 'serviceJobs' | 'transaction' | 'owner' | 'dir'>;
  readonly client: AzureClient;
  /** The token itself, for agents that make themselves known. */
  readonly token: (signal: AbortSignal) => Promise<string>;
  readonly clock: Clock;
  readonly log: Log;
  readonly random: () => number;
  /** Whether a slot still has this agent, in whatever lane. */
  readonly isLive: (agent: AgentId) => boolean;
  /** The pool that an agent is in; null when no slot has it. */
  readonly poolOf: (agent: AgentId) => string | null;
  /** How long a released agent has not been seen by its service, ms; null for any other. */
  readonly silentFor: (agent: AgentId) => number | null;
}

export function createAzurePipelines(parts: AzureParts): CiService {
  const { config, pools, store, client, clock, log, isLive, poolOf, silentFor } = parts;
  const service = config.name;
  const marks = createMarks(store.owner);
  const wall = () => clock.wall();
  const agentPools = createAgentPools(client, config.url);
  const registrar = createRegistrar({ service, store, client, wall });
  const placeholders = createPlaceholders({ service, client, registrar, marks });
  const builds = createBuilds(client);
  const closing = new AbortController();
  const known = new Map<JobId, ServiceJob>();
  const waiting = new Map<string, number>();
  /** Kind of each agent that was registered by this manager; what it says once it is online is learned from one of them. */
  const kinds = new Map<AgentId, AgentKind>();
  const taught = new Set<string>();
  let insideVersion: string | null = null;
  let latest: Seen | null = null;

  const configOf = (name: string): AzurePool => {
    const pool = pools.find((one) => one.name === name);
    if (pool === undefined) throw new OnejobError('E_BUG', `Service ${service} was asked for pool ${name}, which is not its own.`);
    return pool;
  };

  const save = (job: ServiceJob): void => {
    if (JSON.stringify(known.get(job.id)) === JSON.stringify(job)) return;
    if (job.state === 'done') known.delete(job.id);
    else known.set(job.id, job);
    store.transaction({ durable: false }, () => store.serviceJobs.save(job, wall()));
  };

  const note = async (request: JobRequest, agent: AgentId, signal: AbortSignal): Promise<JobId> => {
    const id = jobIdOf(service, request);
    const pool = poolOf(agent) ?? known.get(id)?.pool ?? '';
    save(jobOf(request, { service, pool, agent }, await builds.of(request, signal)));
    return id;
  };

  /** The newest job that this agent was given; undefined when the service does not say. */
  const lastJob = async (pool: number, id: number, agent: AgentId, signal: AbortSignal): Promise<JobId | null | undefined> => {
    try {
      const requests = await client.requests(pool, { agent: id }, signal);
      const given = requests.filter((one) => one.receiveTime !== null).sort((a, b) => b.requestId - a.requestId)[0];
      return given === undefined ? null : await note(given, agent, signal);
    } catch {
      signal.throwIfAborted();
      return undefined;
    }
  };

  const sweep = createSweep({
    log,
    client,
    registrar,
    marks,
    isLive,
    now: () => clock.now(),
    before: (pool, id, agent, signal) => lastJob(pool, id, agent, signal),
  });

  const silence = (agent: AgentId): Failure => ({
    code: 'E_AGENT_SILENT',
    message: `Agent ${agent} was started ${Math.round(config.bootTimeout / 1000)} s ago and has not come online at ${config.url}. Look whether it reaches that address from inside its container, and at the clock of this host.`,
    retry: true,
  });

  async function saw(seen: Seen, emit: (event: CiEvent) => void, signal: AbortSignal): Promise<void> {
    latest = seen;
    placeholders.saw(seen.pool.id, new Set(seen.agents.map(({ name }) => name)));
    for (const [agent, entry] of seen.ours) {
      registrar.seen(agent, entry.id);
      if (entry.status === 'online') emit({ kind: 'online', agent });
      if (entry.assignedRequest !== null) emit({ kind: 'jobSeen', agent, job: await note(entry.assignedRequest, agent, signal) });
      if (entry.status === 'online') await teach(seen.pool.id, agent, entry, signal);
    }
    for (const one of registrar.open()) {
      if (one.placeholder || Number(one.place) !== seen.pool.id || seen.ours.get(one.agent)?.status === 'online') continue;
      if ((silentFor(one.agent) ?? 0) > config.bootTimeout) emit({ kind: 'silent', agent: one.agent, failure: silence(one.agent) });
    }
    count(seen);
    await sweep.after(seen, signal);
  }

  /** Once for each kind of agent: what it says of itself is what its placeholder must say. */
  async function teach(pool: number, agent: AgentId, { id }: Agent, signal: AbortSignal): Promise<void> {
    const kind = kinds.get(agent);
    if (kind === undefined || taught.has(kind.set)) return;
    taught.add(kind.set);
    try {
      const whole = await client.agent(pool, id, { capabilities: true }, signal);
      if (whole !== null) await placeholders.learn(pool, kind.set, whole, signal);
    } catch (error) {
      taught.delete(kind.set);
      signal.throwIfAborted();
      log.warn('placeholder not brought up to date', { service, reason: toFailure(error).message });
    }
  }

  function count({ pool, requests, agents }: Seen): void {
    const mine = new Set(
      agents.filter(({ name }) => marks.agentOf(name) !== null || marks.isPlaceholder(name)).map(({ id }) => id),
    );
    const open = requests.filter((one) => one.result === null && one.receiveTime === null && one.reservedAgent === null);
    const ours = open.filter(
      ({ matchedAgents, matchesAllAgentsInPool }) =>
        matchesAllAgentsInPool || matchedAgents === null || matchedAgents.some(({ id }) => mine.has(id)),
    );
    for (const { name, queue } of pools) if (agentPools.known(queue)?.id === pool.id) waiting.set(name, ours.length);
    const there = new Set(requests.map((one) => jobIdOf(service, one)));
    for (const [id, job] of known) if (job.state === 'waiting' && !there.has(id)) known.delete(id);
    for (const one of ours) known.set(jobIdOf(service, one), jobOf(one, { service, pool: '', agent: null }, null));
  }

  return {
    name: service,
    capabilities: { binds: 'early', canCountQueue: true },

    check: (signal) => findings({ config, pools, client, agentPools, registrar, marks, builds, latest, insideVersion }, signal),

    observe(emit, signal) {
      signal.addEventListener('abort', () => closing.abort(), { once: true });
      for (const queue of new Set(pools.map((pool) => pool.queue))) {
        const served = pools.filter((pool) => pool.queue === queue).map(({ name }) => name);
        void new Watch(
          {
            clock,
            every: config.pollEvery,
            client,
            find: (inner) => agentPools.find(queue, inner),
            agentOf: marks.agentOf,
            random: parts.random,
            saw: (seen, inner) => saw(seen, emit, inner),
            failed(reason) {
              if (reason !== null) agentPools.forget(queue);
              for (const pool of served) emit({ kind: 'hold', pool, reason });
            },
          },
          signal,
        ).start();
      }
    },

    next: () => null,
    devicesFor: () => null,
    recipeFor: () => null,
    record() {},
    committed() {},
    syncing: () => () => {},
    rolledBack() {},

    async register(context, signal) {
      const { agent } = context;
      const { queue, tags } = configOf(context.pool);
      const pool = await agentPools.find(queue, signal);
      const kind = await kindOf(context, tags, signal);
      kinds.set(agent, kind);
      const { inside } = kind;
      insideVersion = inside.version ?? insideVersion;
      const way = wayOf(config.registration, kind, context.pool);
      // One that outlives its first caller: others wait for the same placeholder.
      await placeholders.ensure(pool.id, kind, closing.signal);
      const name = marks.agentName(context.name, agent);
      const script = { root: inside.root ?? '', uid: inside.uid, workspace: context.workspace, capabilities: kind.told };
      if (way !== 'manager') {
        await registrar.expect({ agent, pool: pool.id, name }, signal);
        const token = await parts.token(signal);
        const self: SelfRegistration = { url: config.url, pool: queue, name, token };
        const text =
          way === 'in-agent' ? configuringAgent(script, self) : startingImage(inside.start ?? '', context.workspace, self);
        return { id: null, script: text, redact: [token], files: null };
      }
      const key = await makeAgentKey();
      const body = {
        name,
        version: inside.version ?? '0.0.0',
        osDescription: 'Linux',
        systemCapabilities: {
          ...placeholders.learned(kind.set),
          ...kind.all,
          'Agent.Name': name,
          'Agent.ComputerName': context.name,
        },
        publicKey: key.publicKey,
      };
      const made = await registrar.register({ agent, pool: pool.id, placeholder: false }, body, signal);
      const files = agentFiles({ agent: made, pool, url: config.url, name, workFolder: '_work', key });
      return { id: String(made.id), script: readyAgent(script, files), redact: files.map(({ text }) => text), files: null };
    },

    async settle({ agent }, files, signal) {
      try {
        await keepDiagnostics(store.dir, agent, files, signal);
      } catch (error) {
        signal.throwIfAborted();
        log.warn("the agent's own logs were not kept", { agent, reason: toFailure(error).message });
      }
    },

    async deregister({ agent }, signal) {
      const registration = registrar.find(agent);
      kinds.delete(agent);
      if (registration === null || registration.service !== service || registration.state === 'removed') return { ran: null };
      const remote = registrar.remoteOf(agent);
      const ran = remote === null ? undefined : await lastJob(remote.pool, remote.id, agent, signal);
      try {
        await registrar.remove(registration, signal);
      } catch (error) {
        signal.throwIfAborted();
        // The sweep goes on with it.
        log.warn('registration not removed yet', { agent, reason: toFailure(error).message });
      }
      return { ran };
    },

    async retire(agent, signal) {
      const remote = registrar.remoteOf(agent);
      if (remote === null) return null;
      if ((await client.setEnabled(remote.pool, remote.id, false, signal)) === 'absent') return null;
      const entry = await client.agent(remote.pool, remote.id, { assigned: true }, signal);
      return entry?.assignedRequest == null ? null : note(entry.assignedRequest, agent, signal);
    },

    blame,
    waiting: (pool) => waiting.get(pool) ?? null,
    serviceJobs: () => [...known.values()],
    agentPackage: (platform, signal) => choosePackage(config.agentPackage, client, platform, signal),

    async forget(signal) {
      for (const one of registrar.open()) if (one.placeholder) await registrar.remove(one, signal);
    },
  };
}

/** @throws OnejobError E_AGENT_ABSENT for an image that cannot be an agent in this way */
function wayOf(asked: AzureServiceConfig['registration'], { inside }: AgentKind, pool: string): 'manager' | 'in-agent' | 'image' {
  const way = asked === 'auto' ? (inside.version === null ? 'image' : 'manager') : asked;
  const absent = (what: string, hint: string): never => {
    throw new OnejobError('E_AGENT_ABSENT', `Cannot make agents for pool ${pool}: ${what}`, { hint });
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
      'its image has no agent (looked for bin/Agent.Listener in /opt/agent, /azp and others).',
      'Let onejob build the image ("image: { base: … }"), or set ONEJOB_AGENT_ROOT in the pool\'s env to where it lies.',
    );
  if (inside.version === null)
    return absent(
      `the agent in ${inside.root} does not run: ${(inside.problem ?? 'it says no version').slice(0, 300)}.`,
      'Mostly a library is missing in the image; run "bin/Agent.Listener --version" in it.',
    );
  if (!inside.isWritable)
    return absent(
      `the image's user (${inside.uid}) cannot write to ${inside.root}.`,
      'Give the folder to that user in the image, or set "user" in the pool.',
    );
  return way;
}

/** Exit codes of the listener: agent `Constants.cs`. */
function blame(exit: Exit, lastWords: string): Failure {
  const said = lastWords === '' ? '' : ` It said last:\n${lastWords}`;
  if (exit.kind === 'code' && (exit.code === 3 || exit.code === 4)) {
    return {
      code: 'E_AGENT_OUTDATED',
      message: `The agent ended to become a newer version (exit ${exit.code}), which it would do for every job. Run "onejob image refresh", and switch off automatic updates of the agent pool.`,
      retry: true,
    };
  }
  const how =
    exit.kind === 'code'
      ? `with exit code ${exit.code}`
      : exit.kind === 'signal'
        ? `by ${exit.signal}`
        : exit.kind === 'oom'
          ? 'for lack of memory'
          : 'for reasons of the host';
  return { code: 'E_AGENT_ENDED', message: `The agent ended ${how} and had no job.${said}`, retry: true };
}
