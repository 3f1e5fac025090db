/** Puts the service together from what config says. One broker serves all services of this type. */
import type { BuildkiteServiceConfig, PoolConfig } from '../../config/config.ts';
import { noProxies } from '../../config/proxies.ts';
import { slotNames } from '../../config/slot-names.ts';
import type { AgentId } from '../../core/slot.ts';
import { createPinBook } from '../../pools/secret-desk.ts';
import { parseKeys } from '../../secrets/keys.ts';
import { describeSecret, readSecret } from '../../secrets/reference.ts';
import { subdirectory } from '../../store/directory.ts';
import type { CiService } from '../ci-service.ts';
import type { OpenParts } from '../parts.ts';
import { createAcquire } from './acquire.ts';
import { createAgentBinary } from './agent-binary.ts';
import { createServiceApi } from './api.ts';
import { asCiService } from './base.ts';
import type { GivenJob } from './broker/protocol.ts';
import { brokerCalls, lookAtBroker } from './broker-calls.ts';
import { type BrokerDesk, createBrokerDesk } from './broker-desk.ts';
import { brokerPlace, startBroker } from './broker-process.ts';
import { findings } from './doctor.ts';
import { brokerOnceThere } from './doctor-broker.ts';
import { createEarly } from './early.ts';
import { createJobRows } from './job-rows.ts';
import { createCounts } from './metrics.ts';
import { mountedProgram } from './mounted-program.ts';
import { rule } from './ruling.ts';
import { type BuildkiteParts, createBuildkite } from './service.ts';
import { createStackEntries, forgetOldStacks } from './stack-entries.ts';
import { createStacks } from './stacks.ts';
import { visitingDesk } from './visiting-desk.ts';

/** Version of the agent that this onejob was tried with. */
const pinnedAgent = '3.137.0';

type DeskOpening = Pick<OpenParts, 'store' | 'clock' | 'log' | 'self' | 'temporary' | 'env' | 'broker'>;

export function openDesk({ store, clock, log, self, temporary, env, broker }: DeskOpening): BrokerDesk {
  if (broker !== undefined) return createBrokerDesk({ calls: broker.calls, start: broker.start, clock, log });
  const place = brokerPlace(store.dir);
  const parts = { calls: brokerCalls(place.socket), clock, log };
  return temporary === true
    ? visitingDesk(parts)
    : createBrokerDesk({ ...parts, start: () => startBroker(self, store.dir, place, env?.handedOn) });
}

export function openBuildkite(config: BuildkiteServiceConfig, parts: OpenParts): CiService {
  const { store, clock, log, variables, slots } = parts;
  const pools = parts.config.pools.filter((pool) => pool.service === config.name);
  const wall = () => clock.wall();
  const { secretsKey } = parts.config;
  const { metricsToken } = config;
  const token = () => readSecret(config.token, variables);
  const ofCounts = metricsToken === null ? null : () => readSecret(metricsToken, variables);
  const keys = async () =>
    secretsKey === null
      ? null
      : parseKeys(await readSecret(secretsKey, variables, 'private key'), `The key in ${describeSecret(secretsKey)}`);
  const proxies = parts.env?.proxies ?? noProxies;
  const send = parts.fetch === undefined ? {} : { fetch: parts.fetch };
  const api = createServiceApi({ endpoint: config.endpoint, version: parts.version, clock, proxies, ...send });
  const counts = createCounts({ api, token: ofCounts ?? token, service: config.name, every: config.pollEvery, clock, log });
  const desk = parts.desk();
  const pins = createPinBook({ store, clock });
  const dir = subdirectory(store.dir, 'tools');
  const binary = createAgentBinary({
    config: config.agentPackage,
    dir,
    pinned: pinnedAgent,
    progress: (line) => log.info('agent', { service: config.name, progress: line }),
    warn: (text, fields) => log.warn(text, fields),
  });
  const ruleJob = (job: GivenJob, pool: PoolConfig) => rule(job, { trust: pool.trust, keys, pins });
  const { version } = parts;
  const { host } = parts.config;
  const stacks = createStacks({ endpoint: config.endpoint, version, clock, proxies, token, ...send });
  const entries = createStackEntries({ service: config.name, host, version, store, stacks, wall });
  const isLive = (agent: AgentId) => slots.poolOf(agent) !== null;
  const common: BuildkiteParts = {
    config,
    pools,
    stateDir: store.dir,
    desk,
    rows: createJobRows({ service: config.name, store, wall, log }),
    token,
    rule: (agent, pool) => ruleJob(agent.job ?? { id: '', env: {} }, pool),
    program: mountedProgram({ config: config.agentPackage, pinned: pinnedAgent, binary, dir, wall }),
    nameOf: slotNames(parts.config),
    jobsOf: (slot) => slots.jobsOf(slot),
    counted: counts.waiting,
    count(signal) {
      signal.addEventListener('abort', () => api.close(), { once: true });
      counts.follow(signal);
      const queues = config.mode === 'acquire' ? pools.map(({ queue }) => queue) : [];
      forgetOldStacks(entries, new Set(queues), { clock, log, service: config.name }, signal);
    },
    check(signal, trial) {
      const look = (inner: AbortSignal) => lookAtBroker(brokerPlace(store.dir).socket, inner);
      const temporary = parts.temporary === true;
      const broker = (inner: AbortSignal) => (temporary ? look(inner) : brokerOnceThere(look, clock, inner));
      const about = {
        config,
        pools,
        stateDir: store.dir,
        proxies,
        temporary,
        api,
        token,
        keys,
        broker,
        version: parts.version,
        clock,
        wall,
      };
      return findings({ ...about, metricsToken: ofCounts, door: desk.door, program: () => binary.state }, trial, signal);
    },
    clock,
    log,
  };
  if (config.mode === 'acquire')
    return asCiService(
      createAcquire({ ...common, host, stacks, entries, isLive, agentOf: slots.agentOf, rule: ruleJob, random: Math.random }),
    );
  if (config.binding === 'late') return asCiService(createBuildkite(common));
  return asCiService(createEarly({ ...common, isLive, silentFor: (agent) => slots.silentFor(agent) }));
}
