/**
 * The workspace of a container: a volume that belongs to the agent's user, with files in it. Entries of a tar stream on its way
 * there get another owner in place, and relative links that leave it are rewritten. Names pass unchanged, in any encoding.
 */
import { posix } from 'node:path';
import { pipeline, Readable, Transform } from 'node:stream';
import { extract, type Header, pack } from 'tar-stream';
import type { AgentId } from '../../core/slot.ts';
import type { ContainerListed, Engine } from '../engine/engine.ts';
import { labels, workspacePath } from './create.ts';

/** Who a sandbox's files belong to, as numbers. */
export interface Owner {
  readonly uid: number;
  readonly gid: number;
}

/**
 * Gives the volume of a container that was not started, which belongs to root, to its user. The Engine skips the entry of an
 * archive's top directory and refuses names that leave it, so the archive goes to the root directory.
 */
export async function giveWorkspace(engine: Engine, id: string, owner: Owner, signal: AbortSignal): Promise<void> {
  await engine.putArchive(id, '/', directoryEntry(`${workspacePath.slice(1)}/`, 0o755, owner), signal);
}

/**
 * Gives volumes away whose containers have a read-only root, for which the Engine refuses such an archive: through a second
 * container that shares the volume, and is never started.
 */
export class Givers {
  readonly #engine: Engine;
  readonly #owner: string;
  /** Agents whose workspace is being given away. */
  readonly #giving = new Set<AgentId>();

  constructor(engine: Engine, owner: string) {
    this.#engine = engine;
    this.#owner = owner;
  }

  async give(
    agent: AgentId,
    { id, image }: Readonly<Record<'id' | 'image', string>>,
    to: Owner,
    signal: AbortSignal,
  ): Promise<void> {
    this.#giving.add(agent);
    try {
      const giver = await this.#engine.create(`onejob-workspace-${agent}`, {
        Image: image,
        Entrypoint: ['sh'],
        Labels: { [labels.owner]: this.#owner, [labels.workspace]: agent },
        HostConfig: { VolumesFrom: [id], NetworkMode: 'none' },
      });
      try {
        signal.throwIfAborted();
        await giveWorkspace(this.#engine, giver, to, signal);
      } finally {
        await this.#engine.remove(giver);
      }
    } finally {
      this.#giving.delete(agent);
    }
  }

  /** Removes what a manager has left that was killed meanwhile. */
  async sweep(containers: readonly ContainerListed[]): Promise<void> {
    for (const { Id, Labels } of containers) {
      const agent = Labels?.[labels.workspace] ?? '';
      if (agent !== '' && !this.#giving.has(agent)) await this.#engine.remove(Id);
    }
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
export async function* topEntries(engine: Engine, id: string, names: readonly string[], signal: AbortSignal) {
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

const block = 512;
/** Offset and length of fields in a tar header (POSIX.1-1988 ustar). */
const field = {
  name: [0, 100],
  uid: [108, 8],
  gid: [116, 8],
  size: [124, 12],
  checksum: [148, 8],
  type: [156, 1],
  link: [157, 100],
  magic: [257, 6],
  prefix: [345, 155],
} as const;

/** Passes a tar stream through and makes `owner` the owner of every entry. */
export function withOwner(owner: Owner): Transform {
  let pending: Buffer<ArrayBufferLike> = Buffer.alloc(0);
  /** Bytes of the current entry, with its padding, that are still to come. */
  let body = 0;
  let isPax = false;
  /** An extended header waits for its entry: only both together give the name and target of a link. */
  let about: { head: Buffer; body: Buffer } | null = null;
  return new Transform({
    transform(chunk: Buffer, _encoding, done) {
      pending = pending.length === 0 ? chunk : Buffer.concat([pending, chunk]);
      const out: Buffer[] = [];
      while (pending.length > 0) {
        if (body > 0) {
          // Extended headers are short, and are read whole.
          if (isPax && pending.length < body) break;
          const part = pending.subarray(0, body);
          if (isPax && about !== null) about.body = withoutOwnerRecords(part);
          else out.push(part);
          pending = pending.subarray(part.length);
          body -= part.length;
          continue;
        }
        if (pending.length < block) break;
        const header = Buffer.from(pending.subarray(0, block));
        pending = pending.subarray(block);
        if (header.some((byte) => byte !== 0)) {
          const size = readNumber(header, ...field.size);
          body = Math.ceil(size / block) * block;
          const type = String.fromCharCode(header[field.type[0]] ?? 0);
          if (type === '2') keepInside(header, about?.body ?? null);
          isPax = (type === 'x' || type === 'g') && body <= 1024 * 1024;
          writeNumber(header, owner.uid, ...field.uid);
          writeNumber(header, owner.gid, ...field.gid);
          writeChecksum(header);
        }
        if (about !== null) out.push(about.head, about.body);
        about = isPax && body > 0 ? { head: header, body: Buffer.alloc(0) } : null;
        if (about === null) out.push(header);
      }
      done(null, out.length === 0 ? undefined : Buffer.concat(out));
    },
    flush(done) {
      const last = about === null ? pending : Buffer.concat([about.head, about.body, pending]);
      done(null, last.length === 0 ? undefined : last);
    },
  });
}

/**
 * The Engine refuses a whole archive because of one relative link that leaves the folder. Such a link becomes absolute, which
 * leads to the same place in the sandbox. The result is never longer, so it is written in place.
 */
function keepInside(header: Buffer, pax: Buffer | null): void {
  const records = paxRecords(pax ?? Buffer.alloc(0));
  const long = records.get('linkpath') ?? null;
  const link = long?.value ?? text(header, ...field.link);
  const prefix = text(header, ...field.magic) === 'ustar' ? text(header, ...field.prefix) : '';
  const short = posix.join(prefix, text(header, ...field.name));
  const target = posix.join(workspacePath, posix.dirname(records.get('path')?.value ?? short), link);
  if (link.startsWith('/') || target === workspacePath || target.startsWith(`${workspacePath}/`)) return;
  if (long !== null) pax?.write(target.padStart(link.length, '/'), long.at, 'latin1');
  const [at, length] = field.link;
  header.fill(0, at, at + length);
  header.write(target.slice(0, length), at, 'latin1');
}

/** The records of an extended header, `LENGTH KEY=VALUE\n`. A value begins at `at`, and may contain newlines. */
function paxRecords(body: Buffer) {
  const all = body.toString('latin1');
  const records = new Map<string, { readonly value: string; readonly at: number }>();
  for (let at = 0; ; ) {
    const [head, digits, key] = /^(\d+) ([^=]+)=/.exec(all.slice(at, at + 300)) ?? [];
    const length = Number(digits);
    if (head === undefined || key === undefined || !(length > head.length)) return records;
    records.set(key, { value: all.slice(at + head.length, at + length - 1), at: at + head.length });
    at += length;
  }
}

function text(header: Buffer, offset: number, length: number): string {
  const end = header.indexOf(0, offset);
  return header.toString('latin1', offset, end === -1 ? offset + length : Math.min(end, offset + length));
}

/** A tar with one directory entry, which gives a directory its owner. */
function directoryEntry(name: string, mode: number, owner: Owner): Buffer {
  const header = Buffer.alloc(block);
  header.write(name, 0, 100, 'utf8');
  writeNumber(header, mode, 100, 8);
  writeNumber(header, owner.uid, ...field.uid);
  writeNumber(header, owner.gid, ...field.gid);
  writeNumber(header, 0, ...field.size);
  writeNumber(header, 0, 136, 12);
  header.write('5', field.type[0], 'latin1');
  header.write('ustar\x0000', 257, 'latin1');
  writeChecksum(header);
  return Buffer.concat([header, Buffer.alloc(2 * block)]);
}

/** Records with an unknown key are ignored by every reader, so the keys are renamed. The length stays the same. */
function withoutOwnerRecords(body: Buffer): Buffer {
  const renamed = body
    .toString('latin1')
    .replace(/((?:^|\n)\d+ )(uid|gid|uname|gname)=/g, (_, head: string, key: string) => `${head}${key.toUpperCase()}=`);
  return Buffer.from(renamed, 'latin1');
}

function readNumber(header: Buffer, offset: number, length: number): number {
  // GNU tar writes what does not fit in octal as big-endian binary, with the first bit set.
  if ((header[offset] ?? 0) & 0x80) return header.readUIntBE(offset + length - 6, 6);
  const digits = header.toString('latin1', offset, offset + length).replace(/[\0 ]+$/, '');
  return Number.parseInt(digits.trim() || '0', 8);
}

function writeNumber(header: Buffer, value: number, offset: number, length: number): void {
  header.fill(0, offset, offset + length);
  const octal = value.toString(8);
  if (octal.length < length) {
    header.write(`${octal.padStart(length - 1, '0')}\0`, offset, length, 'latin1');
    return;
  }
  header.writeUIntBE(value, offset + length - 6, 6);
  header[offset] = 0x80;
}

function writeChecksum(header: Buffer): void {
  const [offset, length] = field.checksum;
  header.fill(0x20, offset, offset + length);
  const sum = header.reduce((total, byte) => total + byte, 0);
  header.write(`${sum.toString(8).padStart(6, '0')}\0 `, offset, length, 'latin1');
}
