/** Archives whose names are not what the runtime axis promises, `./a/b`. */
import { pipeline, Readable } from 'node:stream';
import { extract, type Header, pack } from 'tar-stream';

/** The same files with every name, and every hard link's target, beginning with `./`; Podman names them `a/b`. */
export function withDot(files: Readable): Readable {
  return renamed(files, (name) => (name.startsWith('./') || name === '.' ? name : `./${name.replace(/^\/+/, '')}`)).out;
}

/**
 * The folder `folder` that an archive is of, its names beginning with `./` where they began with its own. null, and `files`
 * is destroyed, when the archive is of anything else: its first entry says what was there when it was read, and where
 * Podman followed a link what that led to is called otherwise.
 */
export async function insideFolder(files: Readable, folder: string): Promise<Readable | null> {
  const plain = (name: string) => name.replace(/\/+$/, '');
  const { out, first } = renamed(files, (name) => (plain(name) === folder ? './' : `.${name.slice(folder.length)}`));
  const header = await first;
  if (header?.type === 'directory' && plain(header.name) === folder) return out;
  out.destroy();
  return null;
}

/** `first` resolves with the header of the first entry, or null when there is none. Destroying `out` destroys `files`. */
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
      // Whoever leaves in the middle fails each part by itself; that nobody listened would end the daemon.
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
  // Not everybody asks for it; `out` fails likewise.
  first.catch(() => {});
  const out = Readable.from(writer, { objectMode: false });
  out.once('close', () => {
    files.destroy();
    reader.destroy();
  });
  return { out, first };
}
