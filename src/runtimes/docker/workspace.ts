/** The workspace of a container: a volume that belongs to the agent's user, with files in it. */
import { pipeline, Readable } from 'node:stream';
import { extract, type Header, pack } from 'tar-stream';
import type { Engine } from '../../engine/engine.ts';
import { OnejobError } from '../../errors.ts';
import { directoryEntry, type Owner, withOwner } from './archive.ts';
import { workspacePath } from './create.ts';

/**
 * Gives a new volume, which belongs to root, to its user. The Engine skips the entry of an archive's top directory, and refuses
 * archives outside of volumes under a read-only root. With `..` the directory is an entry like any other.
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

/** Unpacks the tar stream `files` as `owner`. It is destroyed if that fails. */
export async function putWorkspace(engine: Engine, id: string, owner: Owner, files: Readable, signal: AbortSignal): Promise<void> {
  const renamed = withOwner(owner);
  pipeline(files, renamed, () => {});
  await engine.putArchive(id, workspacePath, renamed, signal);
}

/**
 * Everything with one of these names at the top of a workspace, one archive after the other. The Engine does not follow a link at
 * the end of a path, and above a name there is only the workspace.
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

/** The same files, with `./` before every name and hard link target. Podman names them `a/b`. */
export function withDot(files: Readable): Readable {
  return renamed(files, (name) => (name.startsWith('./') || name === '.' ? name : `./${name.replace(/^\/+/, '')}`)).out;
}

/**
 * The folder `folder` of an archive, with names that begin with `./`. null if the archive holds anything else; `files` is then
 * destroyed. The first entry shows what was read, and if Podman followed a link, the target has another name.
 */
export async function insideFolder(files: Readable, folder: string): Promise<Readable | null> {
  const plain = (name: string) => name.replace(/\/+$/, '');
  const { out, first } = renamed(files, (name) => (plain(name) === folder ? './' : `.${name.slice(folder.length)}`));
  const header = await first;
  if (header?.type === 'directory' && plain(header.name) === folder) return out;
  out.destroy();
  return null;
}

/** `first` resolves with the header of the first entry, or null. Destroying `out` destroys `files`. */
function renamed(files: Readable, rename: (name: string) => string): { out: Readable; first: Promise<Header | null> } {
  const reader = extract();
  const writer = pack();
  const { promise: first, resolve, reject } = Promise.withResolvers<Header | null>();
  reader.on('entry', (header, body, next) => {
    resolve(header);
    const { linkname, type } = header;
    const isHard = type === 'link' && linkname != null;
    const { pax: _, ...rest } = header;
    const entry = writer.entry({ ...rest, name: rename(header.name), ...(isHard && { linkname: rename(linkname) }) }, (error) =>
      error == null ? next() : reader.destroy(error instanceof Error ? error : new Error(String(error))),
    );
    if (entry === null || entry === undefined) body.resume();
    else {
      // Destroying it midway fails each part; an unhandled error event would end the daemon.
      for (const part of [body, entry]) part.on('error', () => {});
      body.pipe(entry);
    }
  });
  reader.on('finish', () => {
    resolve(null);
    writer.finalize();
  });
  pipeline(files, reader, (error) => {
    if (!error) return;
    reject(error);
    writer.destroy(error);
  });
  // Not every caller uses it; `out` fails in the same way.
  first.catch(() => {});
  const out = Readable.from(writer, { objectMode: false });
  out.once('close', () => {
    files.destroy();
    reader.destroy();
  });
  return { out, first };
}
