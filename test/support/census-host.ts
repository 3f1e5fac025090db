/** What onejob makes on the host outside of its state directory: control groups, user ids, open folders, firewall rules. */
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync, readlinkSync, rmdirSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';

export interface HostThing {
  readonly kind: 'cgroup' | 'user' | 'file' | 'rules';
  readonly id: string;
  readonly detail: string;
  readonly owner: string | null;
}

const uidClaims = '/run/onejob-users';

/** `owner` null: everybody's. User ids name no owner, but the folder of their agent: `stateDir` null means everybody's. */
export function hostThings(owner: string | null, stateDir: string | null): HostThing[] {
  return [...cgroups(owner), ...users(stateDir), ...openFolders(owner), ...rules(owner)];
}

/** Each owner has one folder below `onejob` in every hierarchy that it uses; agents are below that. */
function cgroups(owner: string | null): HostThing[] {
  return below('/sys/fs/cgroup', 3)
    .filter((path) => basename(dirname(path)) === 'onejob' && (owner === null || basename(path) === owner))
    .map((id) => ({ kind: 'cgroup', id, detail: `${below(id, 1).length} agents in it`, owner: basename(id) }));
}

function users(stateDir: string | null): HostThing[] {
  return list(uidClaims).flatMap((uid): HostThing[] => {
    const claim = join(uidClaims, uid);
    const agent = target(claim);
    // Somebody else's, given back while it was looked at.
    if (agent === null) return [];
    if (stateDir !== null && !agent.startsWith(`${stateDir}/`)) return [];
    return [{ kind: 'user', id: claim, detail: `taken for ${agent}`, owner: null }];
  });
}

/** Where jobs' folders are when they run as a user of their own and nothing can be mounted for them. */
function openFolders(owner: string | null): HostThing[] {
  const prefix = 'onejob-agents-';
  return list('/var/lib')
    .filter((name) => (owner === null ? name.startsWith(prefix) : name === prefix + owner))
    .map((name) => ({ kind: 'file', id: join('/var/lib', name), detail: "jobs' folders", owner: name.slice(prefix.length) }));
}

/**
 * Chains of the firewall: one owner's are named by it. Who is not root cannot have made any. An Engine may use another iptables than the
 * host does by default; the legacy one is asked only where it is in use, because that makes the kernel load it.
 */
function rules(owner: string | null): HostThing[] {
  if (process.getuid?.() !== 0) return [];
  const names = '/proc/self/net/ip_tables_names';
  const isLegacyUsed = existsSync(names) && readFileSync(names, 'utf8').includes('filter');
  const found = ['iptables', 'ip6tables'].flatMap((program) => {
    const saved = [program, ...(isLegacyUsed ? [`${program}-legacy`] : [])]
      .map((flavour) => spawnSync(`${flavour}-save`, ['-t', 'filter'], { encoding: 'utf8' }).stdout ?? '')
      .join('\n');
    return [...saved.matchAll(/^:(onejob-([A-Za-z0-9-]+)-(?:fwd|in)) /gm)].map(
      ([, id = '', of = '']): HostThing => ({ kind: 'rules', id, detail: `a chain of ${program}`, owner: of }),
    );
  });
  // Both flavours show the same where the default is the legacy one.
  const once = new Map(found.map((one) => [`${one.detail} ${one.id}`, one]));
  return [...once.values()].filter((one) => owner === null || one.owner === owner);
}

/** Removes a group and those in it; what a dying process still holds stays, and the next census says so. */
export function removeCgroup(path: string): void {
  try {
    for (const inner of below(path, 3).reverse()) rmdirSync(inner);
    rmdirSync(path);
  } catch {
    // In use.
  }
}

function below(dir: string, depth: number): string[] {
  if (depth === 0) return [];
  return folders(dir).flatMap((name) => [join(dir, name), ...below(join(dir, name), depth - 1)]);
}

// Groups come and go while they are listed.
function folders(dir: string): string[] {
  try {
    return readdirSync(dir, { withFileTypes: true }).flatMap((entry) => (entry.isDirectory() ? [entry.name] : []));
  } catch {
    return [];
  }
}

/** Where a link leads; null when it is gone. */
function target(link: string): string | null {
  try {
    return readlinkSync(link);
  } catch {
    return null;
  }
}

function list(dir: string): string[] {
  try {
    return readdirSync(dir);
  } catch {
    return [];
  }
}
