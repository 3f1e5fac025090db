/** Podman's archives name their entries `a/b`, where the runtime axis promises `./a/b`. */
import { pipeline, Readable } from 'node:stream';
import { extract, pack } from 'tar-stream';

/** The same files with every name, and every hard link's target, beginning with `./`. */
export function withDot(files: Readable): Readable {
  const reader = extract();
  const writer = pack();
  const dotted = (name: string) => (name.startsWith('./') || name === '.' ? name : `./${name.replace(/^\/+/, '')}`);
  reader.on('entry', (header, body, next) => {
    const { linkname, type } = header;
    const isHard = type === 'link' && linkname != null;
    const { pax: _, ...rest } = header;
    const entry = writer.entry({ ...rest, name: dotted(header.name), ...(isHard && { linkname: dotted(linkname) }) }, (error) =>
      error == null ? next() : reader.destroy(error instanceof Error ? error : new Error(String(error))),
    );
    if (entry === null || entry === undefined) body.resume();
    else body.pipe(entry);
  });
  reader.on('finish', () => writer.finalize());
  pipeline(files, reader, (error) => {
    if (error) writer.destroy(error);
  });
  return Readable.from(writer, { objectMode: false });
}
