/** The workspace of a container: a volume that belongs to the agent's user, with files in it. */
import { pipeline, type Readable } from 'node:stream';
import { OnejobError } from '../../errors.ts';
import { directoryEntry, type Owner, withOwner } from './archive.ts';
import { workspacePath } from './create.ts';
import type { Engine } from './engine.ts';

/**
 * A fresh volume belongs to root. The Engine skips an archive's entry for its own top directory, and refuses archives
 * outside of volumes under a read-only root; by way of `..` the same directory is an entry like any other.
 */
export async function giveWorkspace(engine: Engine, id: string, owner: Owner, signal: AbortSignal): Promise<void> {
  const name = workspacePath.slice(1);
  try {
    await engine.putArchive(id, workspacePath, directoryEntry(`../${name}/`, 0o755, owner), signal);
  } catch (error) {
    if (!(error instanceof OnejobError && error.code === 'E_ENGINE_FAILED')) throw error;
    await engine.putArchive(id, '/', directoryEntry(`${name}/`, 0o755, owner), signal);
  }
}

/** Unpacks the tar stream `files` there, as `owner`'s. It is destroyed when that fails. */
export async function putWorkspace(engine: Engine, id: string, owner: Owner, files: Readable, signal: AbortSignal): Promise<void> {
  const renamed = withOwner(owner);
  pipeline(files, renamed, () => {});
  await engine.putArchive(id, workspacePath, renamed, signal);
}

/**
 * What has one of these names at the top of a workspace, one archive behind the other. The Engine follows no link that a path
 * ends with, and above a name there is only the workspace itself.
 */
export async function* topEntries(
  engine: Engine,
  id: string,
  names: readonly string[],
  signal: AbortSignal,
): AsyncGenerator<Buffer> {
  for (const name of names) {
    const files = await engine.getArchive(id, `${workspacePath}/${name}`, signal);
    if (files !== null) yield* files as AsyncIterable<Buffer>;
  }
}
