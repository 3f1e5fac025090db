/** Azure Pipelines binds early: each standby is registered with its own key, and the credential stays in the manager. */

import type { Failure } from '../../base/errors.ts';
import type { Exit } from '../../core/slot.ts';
import { type CiService, endedWithoutJob } from '../../ports/ci-service.ts';
import { EarlyBound } from '../early/engine.ts';
import type { Registrations } from '../early/registrations.ts';
import { choosePackage, settleDiagnostics } from '../kit/in-image.ts';
import type { OpenParts } from '../parts.ts';
import { lookInside } from './capabilities.ts';
import { AzureClient } from './client.ts';
import { createCredential } from './credential.ts';
import { azureFindings } from './doctor.ts';
import type { AzureParts } from './parts.ts';
import { queuesOf } from './pools.ts';
import { AzureRegistry } from './registry.ts';
import { makeAgentKey } from './script.ts';
import { type AzureServiceConfig, azurePipelines } from './type.ts';

export function openAzurePipelines(config: AzureServiceConfig, parts: OpenParts): CiService {
  const { clock, variables, fetch } = parts;
  const { url } = config;
  const credential = createCredential(config.credential, { clock, variables, fetch, url });
  const client = new AzureClient({ url, credential, clock, version: parts.onejob.version, fetch });
  return createAzurePipelines({ ...parts, config, client, makeKey: makeAgentKey, random: Math.random });
}

const howToFit = 'Compare "demands" of the job with the capabilities of the agents, which "tags" and devices of the pool give.';

export function createAzurePipelines(parts: AzureParts) {
  const { config, pools, store, client, clock, log } = parts;
  const { name: service, url } = config;
  const closing = new AbortController();
  const early = { ...parts, service, url, queues: queuesOf(pools), pace: config, compare: howToFit };
  const connect = (known: Registrations) => new AzureRegistry(parts, known, closing.signal);
  const { common, registry, registrations } = new EarlyBound(early, connect);

  return {
    ...common,
    capabilities: { binds: 'early', standsForSlots: false, terms: 1, poolTimeout: false, jobOnStdout: false },
    check: (signal) => azureFindings(parts, registry, registrations, signal),
    observe(emit, signal) {
      signal.addEventListener('abort', () => closing.abort(), { once: true });
      common.observe(emit, signal);
    },
    asks: lookInside,
    settle: settleDiagnostics(clock, log, store.dir),
    deregister(context, signal) {
      registry.forget(context.agent);
      return common.deregister(context, signal);
    },
    describeExit,
    agentPackage: (platform, signal) =>
      choosePackage(azurePipelines.type, config.agentPackage, (of, inner) => client.packages(of, inner), platform, signal),
    forget: (signal) => registry.placeholders.forget(signal),
  } satisfies CiService;
}

/** As `CiService.describeExit`. Exit codes of the listener: agent `Constants.cs`. */
export function describeExit(exit: Exit, outputTail: string): Failure {
  if (exit.kind !== 'code' || (exit.code !== 3 && exit.code !== 4)) return endedWithoutJob(exit, outputTail);
  const message = `The agent ended to update itself (exit ${exit.code}), which it would do for every job. Run "onejob image refresh", and turn off automatic updates of the agent pool.`;
  return { code: 'E_AGENT_OUTDATED', message, retry: true };
}
