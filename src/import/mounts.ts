/** Volumes of a Compose service as `caches` and `volumes` of a pool. */
import { posix } from 'node:path';
import { parseVolume } from '../config/volumes.ts';
import { isMap, listOf, textOf } from './plain.ts';

export interface MountInput {
  readonly volumes: unknown;
  /** `volumes` at the top of the Compose file. */
  readonly named: unknown;
  /** The agent's name, which becomes `{name}` in host paths. */
  readonly name: string;
  /** Absolute path of the Compose file's folder. */
  readonly folder: string;
  say(level: 'warning' | 'note', path: readonly (string | number)[], message: string): void;
}

export interface Mounts {
  readonly caches: readonly string[];
  readonly volumes: readonly string[];
  /** Host paths by container path, for what others name by its container path. */
  readonly hostOf: ReadonlyMap<string, string>;
}

interface Written {
  readonly source: string;
  readonly target: string;
  readonly readOnly: boolean;
}

export function readMounts({ volumes, named, name, folder, say }: MountInput): Mounts {
  const caches: string[] = [];
  const others: string[] = [];
  const hostOf = new Map<string, string>();
  for (const [at, item] of listOf(volumes).entries()) {
    const warn = (message: string) => say('warning', ['volumes', at], message);
    const written = isMap(item) ? longForm(item) : shortForm(textOf(item) ?? '');
    if (written === null) {
      warn(`this volume is not carried over: ${JSON.stringify(isMap(item) ? (item.type ?? item) : item)} is no folder of the host`);
      continue;
    }
    const { source, target, readOnly } = written;
    const bound = bindOf(source, named);
    if (/\/(docker|podman|containerd)\.sock$/.test(source)) {
      warn(`${source} is not carried over: with the Engine's socket a job is root of the host`);
      continue;
    }
    if (bound === null && !/^[./~]/.test(source)) {
      const line = `${cacheName(source)}:${target}`;
      if (readOnly || !target.startsWith('/')) {
        warn(`the volume "${source}" is not carried over: what is in it is with the Engine; write a folder of the host`);
        continue;
      }
      caches.push(line);
      say('note', ['volumes', at], `the volume "${source}" becomes a cache that onejob keeps, which begins empty`);
      continue;
    }
    if (source.startsWith('~')) {
      warn(
        `${source} is not carried over: whose home that is depends on who starts it; write the whole path into "caches" or "volumes"`,
      );
      continue;
    }
    const isRelative = bound === null && !source.startsWith('/');
    const host = bound ?? (isRelative ? posix.resolve(folder, source) : source);
    if (isRelative)
      say('note', ['volumes', at], `${source} is meant from this folder, so it became ${host}: see that it is so on its host`);
    const path = withName(host, name);
    const isHome = /^\/(root|home\/[^/]+)\/?$/.test(target);
    const isCache = !readOnly && (isHome || path !== host);
    const line = `${path}:${target}${isCache || readOnly ? '' : ':rw'}`;
    const parsed = parseVolume(line, isCache ? 'cache' : 'volume');
    if (!parsed.ok) {
      warn(`this volume is not carried over: ${parsed.why}`);
      continue;
    }
    hostOf.set(posix.normalize(target).replace(/\/$/, ''), host);
    (isCache ? caches : others).push(line);
  }
  return { caches, volumes: others, hostOf };
}

/** The agent's name in a path, whole and not as a part of a longer one, as `{name}`. */
function withName(path: string, name: string): string {
  const quoted = name.replaceAll(/[.*+?^${}()|[\]\\]/g, '\\$&');
  return path.replaceAll(new RegExp(`(?<![A-Za-z0-9.])${quoted}(?![A-Za-z0-9]|\\.[0-9])`, 'g'), '{name}');
}

function shortForm(text: string): Written | null {
  // A drive letter of Windows would be cut at its colon.
  const [source, target, ...options] = text.split(':');
  if (source === undefined || target === undefined || source === '' || !target.startsWith('/')) return null;
  return { source, target, readOnly: options.some((option) => option.split(',').includes('ro')) };
}

function longForm(item: Record<string, unknown>): Written | null {
  const [source, target] = [textOf(item.source ?? item.src), textOf(item.target ?? item.dst ?? item.destination)];
  if (source === null || target === null || !target.startsWith('/')) return null;
  if (item.type !== undefined && item.type !== 'bind' && item.type !== 'volume') return null;
  return { source, target, readOnly: item.read_only === true || item.readonly === true };
}

/** The folder that a volume of the file is bound to; null when the Engine keeps it. */
function bindOf(source: string, named: unknown): string | null {
  const volume = isMap(named) ? named[source] : undefined;
  const options = isMap(volume) ? volume.driver_opts : undefined;
  const device = isMap(options) ? textOf(options.device) : null;
  return device?.startsWith('/') && isMap(options) && /bind/.test(textOf(options.o) ?? '') ? device : null;
}

function cacheName(volume: string): string {
  return (
    volume
      .replaceAll(/[^A-Za-z0-9_-]/g, '-')
      .replace(/^[-_]+/, '')
      .slice(0, 32) || 'cache'
  );
}
