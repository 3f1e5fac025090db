/**
 * Makes one standby an agent that the service knows, and takes it off the service's list again. The placeholder comes first: from
 * then on jobs wait for agents of this kind, whatever becomes of this one.
 */
import type { AzureServiceConfig } from '../../config/config.ts';
import type { AgentId, JobId } from '../../core/slot.ts';
import { OnejobError, toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import { until } from '../../until.ts';
import type { AgentContext, Deregistered, Registration } from '../ci-service.ts';
import type { AzureClient } from './client.ts';
import { agentFiles } from './files.ts';
import type { GonePools } from './gone.ts';
import type { JobBook } from './job-book.ts';
import type { AgentKey } from './key.ts';
import { type AgentKind, kindOf } from './kind.ts';
import type { Marks } from './marks.ts';
import type { Placeholders } from './placeholder.ts';
import type { AgentPools, AzurePool } from './pools.ts';
import type { Registrar } from './registrar.ts';
import { configuringAgent, readyAgent, type SelfRegistration, startingImage } from './script.ts';
import { wayOf } from './way.ts';

export interface EnlistParts {
  readonly config: AzureServiceConfig;
  readonly pools: readonly AzurePool[];
  readonly client: AzureClient;
  readonly log: Log;
  readonly marks: Marks;
  readonly agentPools: AgentPools;
  readonly gone: GonePools;
  readonly registrar: Registrar;
  readonly placeholders: Placeholders;
  readonly jobs: JobBook;
  /** Filled here: the kind of each agent until it is deregistered. */
  readonly kinds: Map<AgentId, AgentKind>;
  /** Filled here: agents that are to get no job any more, until they are deregistered. */
  readonly retired: Set<AgentId>;
  /** The token itself, for agents that make themselves known. */
  readonly token: (signal: AbortSignal) => Promise<string>;
  readonly makeKey: () => Promise<AgentKey>;
  /** Until the service ends. */
  readonly closing: AbortSignal;
}

export interface Enlist {
  register(context: AgentContext, signal: AbortSignal): Promise<Registration>;
  deregister(agent: AgentId, signal: AbortSignal): Promise<Deregistered>;
  retire(agent: AgentId, signal: AbortSignal): Promise<JobId | null>;
  /** Version of the agent in the images, as it was seen last; null before. */
  readonly insideVersion: string | null;
  /** Whether tokens have entered sandboxes. */
  readonly handsOutToken: boolean;
}

/** Ends that are remembered. */
const remembered = 256;

export function createEnlist(parts: EnlistParts): Enlist {
  const { config, client, log, marks, agentPools, registrar, placeholders, jobs, kinds, retired, makeKey } = parts;
  /** What had become of agents that are off the list; asked for again when the sandbox could not be removed at once. */
  const ended = new Map<AgentId, Deregistered>();
  let insideVersion: string | null = null;
  let handsOutToken = false;

  const configOf = (name: string): AzurePool => {
    const pool = parts.pools.find((one) => one.name === name);
    if (pool === undefined)
      throw new OnejobError('E_BUG', `Service ${config.name} was asked for pool ${name}, which is not its own.`);
    return pool;
  };

  /** null, too, for one that was to make itself known, and that the service has never heard of. */
  const whatRan = async (agent: AgentId, signal: AbortSignal): Promise<JobId | null | undefined> => {
    try {
      const remote = await registrar.locate(agent, signal);
      return remote === null ? null : await jobs.last(remote.pool, remote.id, agent, signal);
    } catch (error) {
      signal.throwIfAborted();
      log.warn('nobody can say what an agent did', { agent, reason: toFailure(error).message });
      return undefined;
    }
  };

  return {
    async register(context, signal) {
      const { agent } = context;
      const { queue, tags } = configOf(context.pool);
      const pool = await agentPools.find(queue, signal);
      const kind = await kindOf(context, tags, signal);
      const { inside } = kind;
      insideVersion = inside.version ?? insideVersion;
      const way = wayOf(config.registration, inside, context.pool);
      // One that outlives its first caller: others wait for the same placeholder.
      await until(placeholders.ensure(pool.id, kind, parts.closing), signal);
      kinds.set(agent, kind);
      const name = marks.agentName(context.name, agent);
      const script = { root: inside.root ?? '', uid: inside.uid, workspace: context.workspace, capabilities: kind.told };
      if (way !== 'manager') {
        if (config.registration === 'auto' && !handsOutToken)
          log.warn('the image has no agent of its own that runs, so its start script is given the token, which jobs can read', {
            pool: context.pool,
          });
        handsOutToken = true;
        const token = await parts.token(signal);
        await registrar.expect({ agent, pool: pool.id, name }, signal);
        const self: SelfRegistration = { url: config.url, pool: queue, name, token };
        const text =
          way === 'in-agent' ? configuringAgent(script, self) : startingImage(inside.start ?? '', context.workspace, self);
        return { id: null, script: text, redact: [token], files: null };
      }
      const key = await makeKey();
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

    async deregister(agent, signal) {
      const registration = registrar.find(agent);
      kinds.delete(agent);
      retired.delete(agent);
      if (registration === null) return { ran: null };
      if (registration.service !== config.name) return { ran: undefined };
      if (registration.state === 'removed') return ended.get(agent) ?? { ran: undefined };
      const ran = await whatRan(agent, signal);
      // A service that does not say that now would only keep the slot waiting: the sweep goes on with it.
      if (ran === undefined) return { ran };
      try {
        if ((await registrar.remove(registration, signal)) === 'refused') {
          log.warn('the service does not give up the entry of an agent that is gone yet', { agent, entry: registration.name });
        } else {
          ended.set(agent, { ran });
          for (const old of [...ended.keys()].slice(0, -remembered)) ended.delete(old);
        }
      } catch (error) {
        signal.throwIfAborted();
        log.warn('registration not removed yet', { agent, reason: toFailure(error).message });
      }
      return { ran };
    },

    async retire(agent, signal) {
      retired.add(agent);
      try {
        const owner = registrar.find(agent)?.service ?? config.name;
        if (owner !== config.name)
          throw new OnejobError(
            'E_CI_UNREACHABLE',
            `Cannot ask ${config.name} for agent ${agent}: service "${owner}" made it known.`,
            {
              hint: `Put "${owner}" back into the config until the agent is gone.`,
              retry: true,
            },
          );
        const remote = await registrar.locate(agent, signal);
        if (remote === null) return null;
        if ((await client.setEnabled(remote.pool, remote.id, false, signal)) === 'absent') return null;
        const entry = await client.agent(remote.pool, remote.id, { assigned: true }, signal);
        return entry?.assignedRequest == null ? null : jobs.had(entry.assignedRequest, agent, remote.pool);
      } catch (error) {
        if (await parts.gone.explains(error, Number(registrar.find(agent)?.place), signal)) return null;
        throw error;
      }
    },

    get insideVersion() {
      return insideVersion;
    },
    get handsOutToken() {
      return handsOutToken;
    },
  };
}
