/** What is sent to an Engine to be built: a Dockerfile, and the agent's package as it is unpacked. Nothing else of this host. */
import { createReadStream } from 'node:fs';
import { posix } from 'node:path';
import { pipeline, Readable } from 'node:stream';
import { createGunzip } from 'node:zlib';
import { extract, pack } from 'tar-stream';
import { OnejobError } from '../errors.ts';

/** User and group of the agent in the image, as its Dockerfile makes them. */
const agentUser = 1000;

/** A tar stream; a package that is none makes it fail with E_AGENT_PACKAGE. `agent`: path of a `.tar.gz`; null for none. */
export function buildContext(dockerfile: string, agent: string | null): Readable {
  const writer = pack();
  writer.entry({ name: 'Dockerfile', mode: 0o644 }, dockerfile);
  if (agent === null) writer.finalize();
  else unpackInto(writer, agent);
  return Readable.from(writer, { objectMode: false });
}

function unpackInto(writer: ReturnType<typeof pack>, path: string): void {
  const reader = extract();
  const refuse = (why: Error): void => {
    writer.destroy(unusable(path, why));
    // Without the reason: nobody may listen for it any more, and then it would end the process.
    reader.destroy();
  };
  let isThere = false;
  reader.on('entry', (header, body, next) => {
    const { pax: _, uname: _uname, gname: _gname, linkname, type, ...rest } = header;
    const name = within(header.name);
    // A hard link names its target as entries are named; a symbolic one is only text here.
    const target = type === 'link' ? within(linkname ?? '') : '';
    if (name === null || target === null) {
      refuse(new Error(`it holds "${header.name}", which is outside of its folder`));
      return;
    }
    if (name === 'bin/Agent.Listener') isThere = true;
    const link = linkname == null ? {} : { linkname: type === 'link' ? `agent/${target}` : linkname };
    const as = { ...rest, ...link, type, name: `agent/${name}`, uid: agentUser, gid: agentUser };
    const entry = writer.entry(as, (error) => next(error ?? undefined));
    if (entry === null || entry === undefined) body.resume();
    else body.pipe(entry);
  });
  reader.on('finish', () => {
    if (isThere) writer.finalize();
    else refuse(new Error('it holds no bin/Agent.Listener'));
  });
  pipeline(createReadStream(path), createGunzip(), reader, (error) => {
    if (error && !writer.destroyed) refuse(error);
  });
}

/** An entry's path below the folder that it is unpacked to; null for one that leaves it. */
function within(name: string): string | null {
  const path = posix.normalize(name);
  if (posix.isAbsolute(path) || path === '..' || path.startsWith('../')) return null;
  return path.replace(/^\.\/?/, (dot) => (path === dot ? '' : dot));
}

function unusable(path: string, cause: unknown): OnejobError {
  if (cause instanceof OnejobError) return cause;
  const why = cause instanceof Error ? cause.message : String(cause);
  return new OnejobError('E_AGENT_PACKAGE', `Cannot unpack the agent's package ${path}: ${why}.`, {
    hint: 'Look with "tar -tzf" whether it is the .tar.gz of an agent.',
    cause,
  });
}
