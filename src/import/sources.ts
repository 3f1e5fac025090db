/** The files of a fleet: which folders have a Compose file, which have none, and what is in them. Reads, and never writes. */
import { existsSync, readdirSync, readFileSync, realpathSync, statSync } from 'node:fs';
import { join, posix, resolve } from 'node:path';

export interface Folder {
  /** Relative to the root; `.` for the root itself. */
  readonly path: string;
  /** The Compose file, relative to the root; null when there is none. */
  readonly compose: string | null;
  /** What Compose puts on top of it. */
  readonly override: string | null;
  /** Others that look like Compose files, and that Compose does not read by itself. */
  readonly unread: readonly string[];
  /** Names of all that is in it. */
  readonly names: readonly string[];
}

/** In the order in which Compose looks for them. */
const composeNames = ['compose.yaml', 'compose.yml', 'docker-compose.yaml', 'docker-compose.yml'];
const largest = 2 ** 20;
const deepest = 6;
const most = 20_000;

/** All folders below, by path. Links are followed, each folder is seen once. */
export function foldersOf(root: string): Folder[] {
  const found: Folder[] = [];
  const seen = new Set<string>();
  const look = (path: string, depth: number): void => {
    const full = join(root, path);
    const real = realOf(full);
    if (real === null || seen.has(real) || found.length >= most) return;
    seen.add(real);
    const names = namesIn(full);
    const at = (name: string) => posix.join(path, name);
    const files = composeNames.filter((name) => names.includes(name));
    const override = names.find((name) => /^(docker-)?compose\.override\.ya?ml$/.test(name));
    const [compose] = files;
    const others = names.filter((name) => /^(docker-)?compose\..+\.ya?ml$/.test(name) && name !== override);
    found.push({
      path,
      compose: compose === undefined ? null : at(compose),
      override: override === undefined || compose === undefined ? null : at(override),
      unread: [...files.slice(1), ...others].map(at),
      names,
    });
    if (depth >= deepest) return;
    for (const name of names) {
      if (name.startsWith('.') || name === 'node_modules') continue;
      if (isFolder(join(full, name))) look(at(name), depth + 1);
    }
  };
  look('.', 0);
  return found;
}

/** Text of a file, by its path relative to the root; null when there is none that can be read, or it is no text of a config's size. */
export function readText(root: string, path: string): string | null {
  const full = resolve(root, path);
  try {
    const found = statSync(full);
    if (!found.isFile() || found.size > largest) return null;
    return readFileSync(full, 'utf8');
  } catch {
    return null;
  }
}

export function isThere(path: string): boolean {
  return existsSync(path);
}

export function isFolder(path: string): boolean {
  try {
    return statSync(path).isDirectory();
  } catch {
    return false;
  }
}

function realOf(path: string): string | null {
  try {
    return realpathSync(path);
  } catch {
    return null;
  }
}

function namesIn(path: string): string[] {
  try {
    return readdirSync(path).sort();
  } catch {
    return [];
  }
}
