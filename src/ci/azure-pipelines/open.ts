/** Puts the service together from what config says. */

import { noProxies } from '../../config/proxies.ts';
import { OnejobError } from '../../errors.ts';
import { createOutbound } from '../../http/outbound.ts';
import { readSecret } from '../../secrets/reference.ts';
import type { CiService } from '../ci-service.ts';
import type { OpenParts } from '../parts.ts';
import { proxyFindings } from '../proxy-findings.ts';
import { createAzureClient } from './client.ts';
import { createCredential } from './credential.ts';
import { makeAgentKey } from './key.ts';
import { createAzurePipelines } from './service.ts';
import type { AzureServiceConfig } from './type.ts';

export function openAzurePipelines(
  config: AzureServiceConfig,
  { config: { pools }, store, clock, log, version, variables, slots, opened, env, fetch }: OpenParts,
): CiService {
  const { url } = config;
  const wall = () => clock.wall();
  const proxies = env?.proxies ?? noProxies;
  const outbound = createOutbound(proxies);
  const send = { fetch: fetch ?? outbound.fetch };
  const credential = createCredential(config.credential, {
    clock,
    wall,
    url,
    ...send,
    ...(variables !== undefined && { variables }),
  });
  const client = createAzureClient({ url, credential, clock, version, ...send });
  const service = createAzurePipelines({
    config,
    pools: pools.filter((pool) => pool.service === config.name).map(({ name, queue, tags }) => ({ name, queue, tags })),
    store,
    client,
    async token() {
      if (config.credential.kind === 'pat') return (await readSecret(config.credential.token, variables)).trim();
      throw new OnejobError('E_CONFIG', `Agents of service ${config.name} cannot make themselves known with a service principal.`, {
        hint: 'Use "registration: manager", or give a token.',
      });
    },
    makeKey: makeAgentKey,
    clock,
    log,
    random: Math.random,
    opened,
    slots,
  });
  const way = proxyFindings(config.name, url, proxies);
  return {
    ...service,
    check: async (signal, trial) => [...way, ...(await service.check(signal, trial))],
    async close(leaving) {
      await service.close?.(leaving);
      outbound.close();
    },
  };
}
