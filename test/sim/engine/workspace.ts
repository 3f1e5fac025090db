/** Files of a sandbox, in memory: what was put in, what its job made, and all of it as tar streams again. */
import { posix } from 'node:path';
import { Readable } from 'node:stream';
import { extract, type Pack, pack } from 'tar-stream';

/** What a file holds: bytes, or so many zeros; a hole takes no room on disk. */
export type Content = Uint8Array | { readonly zeros: number } | { readonly hole: number };

export type Entry =
  | { readonly kind: 'folder'; readonly mode: number; readonly uid: number }
  | { readonly kind: 'link'; readonly to: string }
  | { readonly kind: 'file'; readonly mode: number; readonly uid: number; readonly content: Content };

const zeros = new Uint8Array(65_536);

export class Workspace {
  /** By path relative to the workspace, without `./`. */
  readonly #entries = new Map<string, Entry>();
  /** Of the user whose files these are. */
  readonly uid: number;

  constructor(uid: number) {
    this.uid = uid;
  }

  get(path: string): Entry | undefined {
    return this.#entries.get(posix.normalize(path));
  }

  /** Makes it, with the folders that it is in. */
  set(path: string, entry: Entry): void {
    const name = posix.normalize(path).replace(/\/$/, '');
    if (name === '.') return;
    const parent = posix.dirname(name);
    if (parent !== '.' && this.#entries.get(parent)?.kind !== 'folder')
      this.set(parent, { kind: 'folder', mode: 0o755, uid: this.uid });
    this.#entries.set(name, entry);
  }

  write(path: string, content: Content, mode = 0o644): void {
    this.set(path, { kind: 'file', mode, uid: this.uid, content });
  }

  folder(path: string): void {
    this.set(path, { kind: 'folder', mode: 0o755, uid: this.uid });
  }

  remove(path: string): void {
    this.#entries.delete(posix.normalize(path));
  }

  /** Text of a file, where links lead too; null if there isn't one. */
  text(path: string): string | null {
    const entry = this.get(path);
    if (entry?.kind === 'link') return this.text(posix.join(posix.dirname(path), entry.to));
    return entry?.kind === 'file' && entry.content instanceof Uint8Array ? Buffer.from(entry.content).toString('latin1') : null;
  }

  /** Bytes on disk. */
  get bytes(): number {
    let sum = 0;
    for (const entry of this.#entries.values()) if (entry.kind === 'file') sum += sizeOnDisk(entry.content);
    return sum;
  }

  /** Puts what is in a tar stream into it; all of it becomes its user's. Nothing changes before all was read. */
  static async read(files: Readable): Promise<[path: string, entry: Omit<Entry, 'uid'>][]> {
    const found: [string, Omit<Entry, 'uid'>][] = [];
    const reader = files.pipe(extract());
    files.on('error', (error) => reader.destroy(error));
    for await (const entry of reader) {
      const { name, type, mode = 0o644, linkname } = entry.header;
      const pieces: Uint8Array[] = [];
      for await (const piece of entry) pieces.push(piece as Uint8Array);
      if (type === 'directory') found.push([name, { kind: 'folder', mode } as Omit<Entry, 'uid'>]);
      else if (type === 'symlink') found.push([name, { kind: 'link', to: linkname ?? '' } as Omit<Entry, 'uid'>]);
      else found.push([name, { kind: 'file', mode, content: Buffer.concat(pieces) } as Omit<Entry, 'uid'>]);
    }
    return found;
  }

  /** Its files as a tar stream; of what is at the top, only what is called as `only` says. */
  tar(only: readonly string[] | null = null): Readable {
    const isWanted = (path: string) => only === null || only.includes(path.split('/')[0] as string);
    return packed([...this.#entries].filter(([path]) => isWanted(path)));
  }

  /** One folder likewise, names relative to it; null for what is not a folder. */
  folderTar(name: string): Readable | null {
    if (this.#entries.get(name)?.kind !== 'folder') return null;
    const inside = [...this.#entries].filter(([path]) => path.startsWith(`${name}/`));
    return packed(inside.map(([path, entry]) => [path.slice(name.length + 1), entry]));
  }
}

function sizeOnDisk(content: Content): number {
  if (content instanceof Uint8Array) return content.length;
  return 'zeros' in content ? content.zeros : 0;
}

function sizeOf(content: Content): number {
  if (content instanceof Uint8Array) return content.length;
  return 'zeros' in content ? content.zeros : content.hole;
}

function packed(entries: readonly [string, Entry][]): Readable {
  const tar = pack();
  tar.entry({ name: '.', type: 'directory', mode: 0o755 });
  for (const [path, entry] of entries) add(tar, `./${path}`, entry);
  tar.finalize();
  return Readable.from(pieces(tar), { objectMode: false });
}

async function* pieces(tar: Pack): AsyncGenerator<Uint8Array, void> {
  for await (const piece of tar) yield piece as Uint8Array;
}

function add(tar: Pack, name: string, entry: Entry): void {
  if (entry.kind === 'folder') tar.entry({ name, type: 'directory', mode: entry.mode, uid: entry.uid });
  else if (entry.kind === 'link') tar.entry({ name, type: 'symlink', linkname: entry.to });
  else if (entry.content instanceof Uint8Array) tar.entry({ name, mode: entry.mode, uid: entry.uid }, Buffer.from(entry.content));
  else {
    const size = sizeOf(entry.content);
    const file = tar.entry({ name, mode: entry.mode, uid: entry.uid, size });
    let left = size;
    for (; left > zeros.length; left -= zeros.length) file.write(zeros);
    file.end(zeros.subarray(0, left));
  }
}
