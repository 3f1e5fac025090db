/** What services share whose agents are programs in images: which package an image gets, and the agent's own logs. */
import { createWriteStream } from 'node:fs';
import { mkdir, rename, rm } from 'node:fs/promises';
import { basename, dirname } from 'node:path';
import { addAbortSignal, type Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { OnejobError, toFailure } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import { inQuotes } from '../../base/quoted.ts';
import { type Clock, deadline } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import { agentLogsPath } from '../../logs/agent-logs.ts';
import type { AgentFiles, AgentPackage, EndedContext } from '../../ports/ci-service.ts';
import type { AgentPackageConfig } from '../../schema/service-keys.ts';

/** Folder of a workspace to which an agent writes its own logs. */
export const diagFolder = '.onejob-diag';

/**
 * A line that prints `writable=yes` if the agent's folder `$d` can be written to. The `[ -w` of busybox tells root that it can where the
 * file system is read-only, so its program is opened as if to write at its end, too.
 */
export function ifWritable(program: string): string {
  return `  if [ -w "$d" ] && ( : >>"$d/bin/${program}" ) 2>/dev/null; then printf 'writable=yes\\n'; fi`;
}

/**
 * Lines that copy the agent in `root` to the current folder, where it can write. An agent takes the folder above its program for its own,
 * links resolved, and writes there (actions/runner and azure-pipelines-agent, `HostContext.cs`): so its programs are copied. What it only
 * reads is a link, unless `isWhole`.
 */
export function copied(root: string, isWhole: boolean): readonly string[] {
  return [
    `cp -R ${inQuotes(`${root}/bin`)} . || exit 1`,
    `[ ! -d ${inQuotes(`${root}/externals`)} ] || ${isWhole ? 'cp -R' : 'ln -s'} ${inQuotes(`${root}/externals`)} . || exit 1`,
  ];
}

/** A package that the service offers, with its address. `sha256`: lower-case hex; null when the service does not say. */
export interface OfferedPackage extends Pick<AgentPackage, 'version' | 'sha256'> {
  readonly url: string;
}

/**
 * The agent's package for images: what config names, else the newest of what the service offers, newest first. `platform`: such as
 * `linux-x64`. @throws OnejobError E_AGENT_PACKAGE when there is no such version, E_CI_*
 */
export async function choosePackage(
  type: string,
  { version, from, sha256 }: AgentPackageConfig,
  offered: (platform: string, signal: AbortSignal) => Promise<readonly OfferedPackage[]>,
  platform: string,
  signal: AbortSignal,
): Promise<AgentPackage> {
  if (from !== null) {
    const named = version ?? /-(\d+\.\d+\.\d+)\.tar\.gz$/.exec(basename(from))?.[1];
    if (named !== undefined) return { type, version: named, from, sha256 };
    const hint = 'Add the version: agent: { version: "5.278.0", from: … }.';
    throw new OnejobError('E_AGENT_PACKAGE', `Cannot determine the version of the agent in ${from} from its name.`, { hint });
  }
  const packages = await offered(platform, signal);
  const found = version === null ? packages[0] : packages.find((one) => one.version === version);
  if (found !== undefined) return { type, version: found.version, from: found.url, sha256: sha256 ?? found.sha256 };
  const seen = packages.map((one) => one.version).slice(0, 5);
  const what = version === null ? 'any agent' : `version ${version} of the agent`;
  const others = seen.length > 0 ? ` It has ${seen.join(', ')}.` : '';
  const hint = 'Name a version that it has, or the address of the package: agent: { from: https://… }.';
  throw new OnejobError('E_AGENT_PACKAGE', `The service does not offer ${what} for ${platform}.${others}`, { hint });
}

/** As `CiService.settle`: keeps the agent's own logs, if it can. */
export const settleDiagnostics =
  (clock: Clock, log: Pick<Log, 'warn'>, stateDir: string) =>
  async ({ agent }: Pick<EndedContext, 'agent'>, files: AgentFiles, signal: AbortSignal): Promise<void> => {
    try {
      await keepDiagnostics(clock, stateDir, agent, files, signal);
    } catch (error) {
      signal.throwIfAborted();
      log.warn("the agent's own logs were not kept", { agent, reason: toFailure(error).message });
    }
  };

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
