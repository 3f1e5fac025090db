/** Puts the service together from what config says. */
import { noProxies } from '../../config/proxies.ts';
import { createOutbound } from '../../http/outbound.ts';
import { parseKeys } from '../../secrets/keys.ts';
import { createPinStore } from '../../secrets/pin-store.ts';
import { describeSecret, readSecret } from '../../secrets/reference.ts';
import { subdirectory } from '../../store/directory.ts';
import type { CiService } from '../ci-service.ts';
import { createFilter } from '../filter/filter.ts';
import { createAgentProgram } from '../kit/agent-program.ts';
import type { OpenParts } from '../parts.ts';
import { buildkiteAgent } from './agent/agent-release.ts';
import { createInAgent } from './agent/in-agent.ts';
import { createServiceApi } from './api.ts';
import { findings } from './doctor/doctor.ts';
import { isOpenToUntrusted } from './doctor/doctor-pools.ts';
import type { FrontParts } from './front.ts';
import { admit } from './jobs/admission.ts';
import { createJobRows } from './jobs/job-rows.ts';
import { createCounts } from './metrics.ts';
import { createBuildkite } from './service.ts';
import { createStackEntry, createStacks } from './stacks/stacks.ts';
import type { BuildkiteServiceConfig } from './type.ts';

export function openBuildkite(config: BuildkiteServiceConfig, parts: OpenParts): CiService {
  const { store, clock, log, variables, slots, onejob, env } = parts;
  const { name, endpoint, registration } = config;
  const { secretsKey, host } = parts.config;
  const { version, self } = onejob;
  const pools = parts.config.pools.filter((pool) => pool.service === name);
  const token = () => readSecret(config.token, variables);
  const metricsToken = () => readSecret(config.metricsToken ?? config.token, variables);
  const isInAgent = registration === 'in-agent';
  // onejob decrypts no secrets for agents that take their jobs themselves.
  const keys = async () =>
    secretsKey === null || isInAgent
      ? null
      : parseKeys(await readSecret(secretsKey, variables, 'private key'), `The key in ${describeSecret(secretsKey)}`);
  const proxies = env?.proxies ?? noProxies;
  const outbound = createOutbound(proxies);
  const fetch = parts.fetch ?? outbound.fetch;
  const api = createServiceApi({ endpoint, version, clock, fetch });
  const program = createAgentProgram({
    ...{ project: buildkiteAgent(), config: config.agentPackage, dir: subdirectory(store.dir, 'tools') },
    wall: () => clock.wall(),
    progress: (line) => log.info('agent', { service: name, progress: line }),
    warn: (text, fields) => log.warn(text, fields),
  });
  // A temporary manager makes no agents.
  const isFiltered = !isInAgent && pools.some(isOpenToUntrusted) && onejob.temporary !== true;
  const filterParts = { stateDir: store.dir, self, given: env?.handedOn ?? {}, version, clock, log };
  const filter = isFiltered ? (parts.filter ?? createFilter(filterParts)) : null;
  const doctor = { config, pools, stateDir: store.dir, proxies, api, tokens: { service: token, metrics: metricsToken } };
  const front: FrontParts = {
    ...{ config, pools, token, program, clock, log },
    rows: createJobRows(name, parts),
    counts: createCounts({ api, token: metricsToken, config, clock, log }),
    check: (signal, sandboxes) => findings({ ...doctor, keys, filter, program, clock }, sandboxes, signal),
  };
  const byAcquisition = (): CiService => {
    const stacks = createStacks({ endpoint, version, clock, token, fetch });
    const pins = createPinStore({ store, clock });
    return createBuildkite({
      ...{ ...front, host, stacks, filter, slots, stateDir: store.dir, random: Math.random },
      entry: createStackEntry(name, stacks, { host, version, store, clock }),
      admit: (job, pool) => admit(job, { trust: pool.trust, keys, pins }),
    });
  };
  const service = isInAgent ? createInAgent({ ...front, slots }) : byAcquisition();
  return {
    ...service,
    async close(leaving) {
      await service.close?.(leaving);
      outbound.close();
    },
  };
}
