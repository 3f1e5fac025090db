/**
 * The package of a CI service's agent, as a file of this host: downloaded once, checked, and kept until no image is built from it.
 * A file with another checksum than expected never gets the name of the package.
 */
import { createHash, hash } from 'node:crypto';
import { createReadStream, createWriteStream, existsSync, mkdirSync } from 'node:fs';
import { readdir, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import type { Progress } from '../base/abortable.ts';
import { OnejobError } from '../base/errors.ts';
import type { AgentPackage } from '../ports/ci-service.ts';
import { isReachable } from '../system/file-server.ts';
import { addressProblem, type ReceiveOptions, reasonOf, receive } from './receive.ts';

/** `limit`: default 1 GiB. */
export interface PackageParts extends Partial<Omit<ReceiveOptions, 'signal'>> {
  /** Folder for downloaded packages; created when it is needed. */
  readonly dir: string;
  /** Logs a problem that does not stop the download. */
  readonly warn?: (text: string, fields: Record<string, unknown>) => void;
}

const largest = 2 ** 30;

/** The package as a file with the right checksum. @throws OnejobError E_AGENT_PACKAGE, or the reason of `signal` */
export async function getPackage(agent: AgentPackage, parts: PackageParts, progress: Progress, signal: AbortSignal) {
  const { version, from, sha256: expected } = agent;
  const isFile = from.startsWith('/');
  try {
    if (isFile) {
      progress(`checking the agent ${version}`);
      if (!(await isReachable(from))) throw failure(agent, 'its file server does not answer', { retry: true });
      return { path: from, sha256: asExpected(agent, await hashOf(from, signal)) };
    }
    if (expected === null) {
      progress(`warning: no SHA-256 is known for the agent ${version}, so onejob does not verify what it downloads from ${from}`);
      parts.warn?.('agent used without checking its checksum', { version, from, hint: 'Set services.<name>.agent.sha256.' });
    }
    const path = join(parts.dir, fileName(agent));
    if (existsSync(path)) {
      const sha256 = await hashOf(path, signal);
      if (expected === null || expected === sha256) return { path, sha256 };
      await rm(path, { force: true });
    }
    return { path, sha256: await download(agent, path, parts, progress, signal) };
  } catch (error) {
    signal.throwIfAborted();
    if (error instanceof OnejobError) throw error;
    throw failure(agent, reasonOf(error), { retry: !isFile, cause: error });
  }
}

/** Removes downloaded packages except for `wanted`, and what interrupted downloads left. */
export async function prunePackages(dir: string, wanted: readonly AgentPackage[]): Promise<void> {
  const keep = new Set(wanted.map(fileName));
  const names = await readdir(dir).catch(() => []);
  await Promise.all(names.filter((name) => !keep.has(name)).map((name) => rm(join(dir, name), { force: true })));
}

function fileName({ type, version, from, sha256 }: AgentPackage): string {
  const mark = (sha256 ?? hash('sha256', from)).slice(0, 12);
  return `${type}-${version.replaceAll(/[^A-Za-z0-9.-]/g, '_')}-${mark}.tar.gz`;
}

async function download(agent: AgentPackage, path: string, parts: PackageParts, progress: Progress, signal: AbortSignal) {
  const url = await addressOf(agent);
  mkdirSync(parts.dir, { recursive: true, mode: 0o700 });
  const partial = `${path}.${process.pid}.part`;
  try {
    progress(`fetching the agent ${agent.version}`);
    const sha256 = await receive(url, { limit: largest, ...parts, signal }, async (body, total, either) => {
      const digest = createHash('sha256');
      const seen = async function* (chunks: AsyncIterable<Uint8Array>) {
        let bytes = 0;
        let shown = 0;
        for await (const chunk of chunks) {
          bytes += chunk.length;
          digest.update(chunk);
          const percent = total > 0 ? Math.floor((bytes / total) * 100) : 0;
          if (percent >= shown + 5) {
            shown = percent;
            progress(`fetching the agent ${agent.version}: ${percent} %`);
          }
          yield chunk;
        }
      };
      // Flushed: of a package without a known checksum, a part would count as the whole after a power cut.
      await pipeline(body, seen, createWriteStream(partial, { mode: 0o600, flush: true }), { signal: either });
      return digest.digest('hex');
    });
    asExpected(agent, sha256);
    await rename(partial, path);
    return sha256;
  } finally {
    await rm(partial, { force: true });
  }
}

export async function hashOf(path: string, signal: AbortSignal): Promise<string> {
  const digest = createHash('sha256');
  await pipeline(createReadStream(path), digest, { signal });
  return digest.digest('hex');
}

async function addressOf(agent: AgentPackage): Promise<URL> {
  const problem = await addressProblem(agent.from);
  if (problem === null) return new URL(agent.from);
  const hint = 'Set services.<name>.agent.from to an https address or to the absolute path of a .tar.gz file.';
  throw new OnejobError('E_AGENT_PACKAGE', `Cannot fetch the agent ${agent.version} from "${agent.from}": ${problem}.`, { hint });
}

/** The checksum of a package. @throws OnejobError E_AGENT_PACKAGE if it is not the one that is known */
function asExpected(agent: AgentPackage, found: string): string {
  if (agent.sha256 === null || agent.sha256 === found) return found;
  throw failure(agent, `its SHA-256 is ${found}, not ${agent.sha256}`, {
    hint: 'Check whether services.<name>.agent names the version that the checksum belongs to; if it does, somebody changed the file.',
  });
}

function failure(agent: AgentPackage, why: string, options: { hint?: string; retry?: boolean; cause?: unknown }): OnejobError {
  return new OnejobError('E_AGENT_PACKAGE', `Cannot use the package of the agent ${agent.version} from ${agent.from}: ${why}.`, {
    hint: `Check whether "curl -fLO ${agent.from}" works on this host, or set services.<name>.agent.from to a file.`,
    ...(agent.from.startsWith('/') && { hint: 'Check whether the file exists and onejob may read it.' }),
    ...options,
  });
}
