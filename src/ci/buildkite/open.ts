/** Puts the service together from what config says. One broker serves all services of this type. */
import { createHash } from 'node:crypto';
import { rename, rm, symlink } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { BuildkiteServiceConfig } from '../../config/config.ts';
import { slotNames } from '../../config/slot-names.ts';
import { createPinBook } from '../../pools/secret-desk.ts';
import { parseKeys } from '../../secrets/keys.ts';
import { describeSecret, readSecret } from '../../secrets/reference.ts';
import { subdirectory } from '../../store/directory.ts';
import type { CiService } from '../ci-service.ts';
import type { OpenParts } from '../index.ts';
import { type AgentBinary, createAgentBinary } from './agent-binary.ts';
import { createServiceApi } from './api.ts';
import { brokerCalls, lookAtBroker } from './broker-calls.ts';
import { type BrokerDesk, createBrokerDesk } from './broker-desk.ts';
import { brokerPlace, startBroker } from './broker-process.ts';
import { findings } from './doctor.ts';
import { createJobRows } from './job-rows.ts';
import { createCounts } from './metrics.ts';
import { rule } from './ruling.ts';
import { createBuildkite, type Program } from './service.ts';

/** Version of the agent that this onejob was tried with. */
export const pinnedAgent = '3.137.0';

export function openDesk({ store, clock, log, self }: Pick<OpenParts, 'store' | 'clock' | 'log' | 'self'>): BrokerDesk {
  const place = brokerPlace(store.dir);
  return createBrokerDesk({ calls: brokerCalls(place.socket), start: () => startBroker(self, store.dir, place), clock, log });
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
    secretsKey === null ? null : parseKeys(await readSecret(secretsKey, variables), `The key in ${describeSecret(secretsKey)}`);
  const api = createServiceApi({ endpoint: config.endpoint, version: parts.version, clock });
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
  return createBuildkite({
    config,
    pools,
    stateDir: store.dir,
    desk,
    rows: createJobRows({ service: config.name, store, wall }),
    token,
    rule: (agent, pool) =>
      rule(agent.job ?? { id: '', env: {} }, {
        trust: pool.trust,
        keys,
        pins,
      }),
    program: programOf(config, binary, dir),
    nameOf: slotNames(parts.config),
    jobsOf: (slot) => slots.jobsOf(slot),
    counted: counts.waiting,
    count(signal) {
      signal.addEventListener('abort', () => api.close(), { once: true });
      counts.follow(signal);
    },
    check(signal, trial) {
      const broker = (inner: AbortSignal) => lookAtBroker(brokerPlace(store.dir).socket, inner);
      const about = { config, pools, stateDir: store.dir, api, token, keys, broker, version: parts.version, wall };
      return findings({ ...about, metricsToken: ofCounts, door: desk.door, program: () => binary.state }, trial, signal);
    },
    clock,
    log,
  });
}

/**
 * The folder is named by what config says, and leads to the program that was found for it: so what a sandbox is made from is
 * known before the program is.
 */
function programOf({ agentPackage }: BuildkiteServiceConfig, binary: AgentBinary, dir: string): Program {
  if (agentPackage.from === 'image') return { folder: null, ready: async () => {} };
  const mark = createHash('sha256')
    .update(JSON.stringify([pinnedAgent, agentPackage]))
    .digest('hex')
    .slice(0, 12);
  const folder = join(dir, `at-${mark}`);
  return {
    folder,
    async ready(signal) {
      const path = await binary.ready(signal);
      if (path === null) return;
      const next = `${folder}.${process.pid}`;
      await rm(next, { force: true });
      await symlink(dirname(path), next);
      await rename(next, folder);
    },
  };
}
