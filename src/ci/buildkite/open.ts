/** Puts the service together from what config says. */
import type { PoolConfig } from '../../config/config.ts';
import { noProxies } from '../../config/proxies.ts';
import { createOutbound } from '../../http/outbound.ts';
import { parseKeys } from '../../secrets/keys.ts';
import { createPinStore } from '../../secrets/pin-store.ts';
import { describeSecret, readSecret } from '../../secrets/reference.ts';
import { subdirectory } from '../../store/directory.ts';
import type { CiService } from '../ci-service.ts';
import type { DiagnosticSandboxes } from '../diagnostic-sandbox.ts';
import { createFilter } from '../filter/filter.ts';
import { createAgentProgram } from '../kit/agent-program.ts';
import type { OpenParts } from '../parts.ts';
import { buildkiteReleases } from './agent/agent-release.ts';
import { createInAgent } from './agent/in-agent.ts';
import { createServiceApi } from './api.ts';
import { findings } from './doctor/doctor.ts';
import { isOpenToUntrusted } from './doctor/doctor-pools.ts';
import { admit } from './jobs/admission.ts';
import type { GivenJob } from './jobs/job-facts.ts';
import { createJobRows } from './jobs/job-rows.ts';
import { createCounts } from './metrics.ts';
import { createBuildkite } from './service.ts';
import { createStackEntry, createStacks } from './stacks/stacks.ts';
import { type BuildkiteServiceConfig, pinnedAgent } from './type.ts';

export function openBuildkite(config: BuildkiteServiceConfig, parts: OpenParts): CiService {
  const { store, clock, log, variables, slots, version } = parts;
  const pools = parts.config.pools.filter((pool) => pool.service === config.name);
  const wall = () => clock.wall();
  const { secretsKey, host } = parts.config;
  const { metricsToken } = config;
  const token = () => readSecret(config.token, variables);
  const ofCounts = metricsToken === null ? null : () => readSecret(metricsToken, variables);
  const isInAgent = config.registration === 'in-agent';
  // Nobody opens secrets for agents that take their jobs themselves.
  const keys = async () =>
    secretsKey === null || isInAgent
      ? null
      : parseKeys(await readSecret(secretsKey, variables, 'private key'), `The key in ${describeSecret(secretsKey)}`);
  const proxies = parts.env?.proxies ?? noProxies;
  const outbound = createOutbound(proxies);
  const fetch = parts.fetch ?? outbound.fetch;
  const api = createServiceApi({ endpoint: config.endpoint, version, clock, fetch });
  const counts = createCounts({ api, token: ofCounts ?? token, config, clock, log });
  const pins = createPinStore({ store, clock });
  const program = createAgentProgram({
    ...{
      name: 'buildkite-agent',
      type: config.type,
      config: config.agentPackage,
      pinned: pinnedAgent,
      releases: buildkiteReleases(),
    },
    dir: subdirectory(store.dir, 'tools'),
    wall,
    progress: (line) => log.info('agent', { service: config.name, progress: line }),
    warn: (text, fields) => log.warn(text, fields),
  });
  // A temporary manager makes no agents.
  const isFiltered = !isInAgent && pools.some(isOpenToUntrusted) && parts.temporary !== true;
  const filterParts = { stateDir: store.dir, self: parts.self, given: parts.env?.handedOn ?? {}, version, clock, log };
  const filter = isFiltered ? (parts.filter ?? createFilter(filterParts)) : null;
  const common = {
    ...{ config, pools, token, counts, clock, log },
    rows: createJobRows(config.name, parts),
    program,
    check: (signal: AbortSignal, trial: DiagnosticSandboxes) =>
      findings(
        {
          ...{ config, pools, stateDir: store.dir, proxies, api, token, keys, filter, clock },
          metricsToken: ofCounts,
          program,
        },
        trial,
        signal,
      ),
  };
  const byAcquisition = (): CiService => {
    const stacks = createStacks({ endpoint: config.endpoint, version, clock, token, fetch });
    return createBuildkite({
      ...{ ...common, host, stacks, filter },
      stateDir: store.dir,
      entry: createStackEntry(config.name, stacks, parts),
      rule: (job: GivenJob, pool: PoolConfig) => admit(job, { trust: pool.trust, keys, pins }),
      slots,
      random: Math.random,
    });
  };
  const service = isInAgent ? createInAgent({ ...common, slots }) : byAcquisition();
  return {
    ...service,
    async close(leaving) {
      await service.close?.(leaving);
      outbound.close();
    },
  };
}
