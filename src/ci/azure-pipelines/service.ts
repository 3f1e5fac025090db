/** Azure Pipelines binds early: each standby is registered with its own key, and the credential stays in the manager. */
import { createWriteStream } from 'node:fs';
import { mkdir, rename, rm } from 'node:fs/promises';
import { basename, dirname } from 'node:path';
import { addAbortSignal, type Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import type { AgentPackageConfig } from '../../config/config.ts';
import { type Clock, deadline } from '../../core/clock.ts';
import type { AgentId, Exit, Failure } from '../../core/slot.ts';
import { OnejobError, toFailure } from '../../errors.ts';
import { agentLogsPath } from '../../logs/agent-logs.ts';
import type { Store } from '../../store/store.ts';
import { type AgentFiles, type AgentPackage, type CiService, endedWithoutJob } from '../ci-service.ts';
import { createEarlyBound } from '../early/engine.ts';
import type { EarlyParts } from '../early/port.ts';
import type { Registrations } from '../early/registrations.ts';
import type { OpenParts } from '../parts.ts';
import { type AzureClient, createAzureClient } from './client.ts';
import { createCredential } from './credential.ts';
import { findings } from './doctor.ts';
import { type AzurePool, queuesOf } from './pools.ts';
import { createAzureRegistry } from './registry.ts';
import { type AgentKey, diagFolder, makeAgentKey } from './script.ts';
import { type AzureServiceConfig, azurePipelines } from './type.ts';

export function openAzurePipelines(config: AzureServiceConfig, parts: OpenParts): CiService {
  const { clock, variables, fetch } = parts;
  const { url } = config;
  const credential = createCredential(config.credential, { clock, variables, fetch, url });
  const client = createAzureClient({ url, credential, clock, version: parts.onejob.version, fetch });
  return createAzurePipelines({ ...parts, config, client, makeKey: makeAgentKey, random: Math.random });
}

export interface AzureParts extends Omit<EarlyParts, 'service' | 'url' | 'queues' | 'pace'>, Pick<OpenParts, 'variables'> {
  readonly config: AzureServiceConfig;
  readonly pools: readonly AzurePool[];
  readonly store: EarlyParts['store'] & Pick<Store, 'dir'>;
  readonly client: AzureClient;
  readonly makeKey: () => Promise<AgentKey>;
}

export function createAzurePipelines(parts: AzureParts) {
  const { config, pools, store, client, clock, log } = parts;
  const { name: service, url } = config;
  const closing = new AbortController();
  const early = { ...parts, service, url, queues: queuesOf(pools), pace: config };
  const connect = (known: Registrations) => createAzureRegistry(parts, known, closing.signal);
  const { common, registry, registrations } = createEarlyBound(early, connect);

  return {
    ...common,
    capabilities: { binds: 'early', standsForSlots: false, terms: 1, poolTimeout: false, jobOnStdout: false },
    check: (signal) => findings(parts, registry, registrations, signal),
    observe(emit, signal) {
      signal.addEventListener('abort', () => closing.abort(), { once: true });
      common.observe(emit, signal);
    },
    async settle({ agent }, files, signal) {
      try {
        await keepDiagnostics(clock, store.dir, agent, files, signal);
      } catch (error) {
        signal.throwIfAborted();
        log.warn("the agent's own logs were not kept", { agent, reason: toFailure(error).message });
      }
    },
    deregister(context, signal) {
      registry.forget(context.agent);
      return common.deregister(context, signal);
    },
    describeExit,
    agentPackage: (platform, signal) => choosePackage(config.agentPackage, client, platform, signal),
    forget: (signal) => registry.placeholders.forget(signal),
  } satisfies CiService;
}

/** As `CiService.describeExit`. Exit codes of the listener: agent `Constants.cs`. */
export function describeExit(exit: Exit, outputTail: string): Failure {
  if (exit.kind !== 'code' || (exit.code !== 3 && exit.code !== 4)) return endedWithoutJob(exit, outputTail);
  const message = `The agent ended to update itself (exit ${exit.code}), which it would do for every job. Run "onejob image refresh", and turn off automatic updates of the agent pool.`;
  return { code: 'E_AGENT_OUTDATED', message, retry: true };
}

/**
 * The agent's package for images: what config names, else the service's newest. `platform`: such as `linux-x64`. @throws
 * OnejobError E_AGENT_PACKAGE when there is no such version, E_CI_*
 */
export async function choosePackage(
  config: AgentPackageConfig,
  client: Pick<AzureClient, 'packages'>,
  platform: string,
  signal: AbortSignal,
): Promise<AgentPackage> {
  const { version, from, sha256 } = config;
  if (from !== null) {
    const named = version ?? /-(\d+\.\d+\.\d+)\.tar\.gz$/.exec(basename(from))?.[1];
    if (named !== undefined) return { type: azurePipelines.type, version: named, from, sha256 };
    const hint = 'Add the version: agent: { version: "5.278.0", from: … }.';
    throw new OnejobError('E_AGENT_PACKAGE', `Cannot determine the version of the agent in ${from} from its name.`, { hint });
  }
  const packages = await client.packages(platform, signal);
  const found = version === null ? packages[0] : packages.find((one) => one.version === version);
  if (found !== undefined)
    return { type: azurePipelines.type, version: found.version, from: found.url, sha256: sha256 ?? found.sha256 };
  const seen = packages.map((one) => one.version).slice(0, 5);
  const what = version === null ? 'any agent' : `version ${version} of the agent`;
  const others = seen.length > 0 ? ` It has ${seen.join(', ')}.` : '';
  const hint = 'Name a version that it has, or the address of the package: agent: { from: https://… }.';
  throw new OnejobError('E_AGENT_PACKAGE', `The service does not offer ${what} for ${platform}.${others}`, { hint });
}

export const diagLimit = 10 * 2 ** 20;

/** ms for all of it: a job decides how long its logs are. */
const patience = 60_000;

/** Copies the agent's own logs before its sandbox is removed. Idempotent. `limit`: ms after which it fails. */
export async function keepDiagnostics(
  clock: Clock,
  stateDir: string,
  agent: AgentId,
  files: AgentFiles,
  signal: AbortSignal,
  limit = patience,
): Promise<void> {
  using late = deadline(clock, limit, signal);
  const either = late.signal;
  const path = agentLogsPath(stateDir, agent);
  const part = `${path}.part`;
  try {
    const found = await files.folder(diagFolder, either);
    if (found === null) return;
    await mkdir(dirname(path), { recursive: true, mode: 0o700 });
    // A sparse file may be terabytes of zeros, so reading stops.
    addAbortSignal(either, found);
    try {
      await pipeline(upTo(diagLimit, found), createWriteStream(part, { mode: 0o600 }), { signal: either });
    } finally {
      found.destroy();
    }
    await rename(part, path);
  } catch (error) {
    await rm(part, { force: true });
    signal.throwIfAborted();
    if (late.passed) throw new Error(`they could not be read within ${limit / 1000} s`, { cause: error });
    throw error;
  }
}

/** Stops reading as soon as enough is kept. */
async function* upTo(limit: number, source: Readable): AsyncGenerator<Buffer> {
  let left = limit;
  for await (const chunk of source as AsyncIterable<Buffer>) {
    yield chunk.subarray(0, left);
    left -= chunk.length;
    if (left <= 0) return;
  }
}
