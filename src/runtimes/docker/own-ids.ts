/**
 * User ids that one agent with an engine has alone, so what the kernel counts by user is its own, and no other agent, process or file of
 * the host has its ids. They are claimed as those of the process runtime are (`../uids.ts`).
 *
 * What agents share, their images and the folders of their pool, belongs on disk to the users of the image of engines. Id-mapped mounts
 * show it as the agent's own. They are made in the namespace of its container, over what the Engine has mounted there, before anything of
 * the job is in it. So they go with the container, and nobody has to look for them. Where this cannot be, agents of the same trust
 * have the ids of the image.
 */
import { randomInt } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { release } from 'node:os';
import { attempt } from '../../base/errors.ts';
import { type Finding, fine } from '../../base/finding.ts';
import { engineFileProblem } from '../../config/check-containers.ts';
import { contains } from '../../config/host-places.ts';
import type { Recipe } from '../../ports/runtime.ts';
import { run } from '../../system/run.ts';
import { claimUid, firstUid } from '../uids.ts';
import { type EngineUser, engineUsers, inEngine } from './engine-program.ts';

/** overlayfs takes id-mapped mounts since then (kernel documentation, "Idmappings"). */
const oldest = [5, 19] as const;

/** Why agents of this host cannot have ids of their own, as the end of a sentence; null if nothing is known against it. */
export function idsObstacle(kernel = release(), user = process.getuid?.()): string | null {
  const [major = 0, minor = 0] = kernel.split('.').map((part) => Number.parseInt(part, 10));
  if (major < oldest[0] || (major === oldest[0] && minor < oldest[1]))
    return `the kernel of this host is ${kernel}, and ${oldest.join('.')} is the first that can map the ids of their images`;
  return user === 0 ? null : 'onejob is not root';
}

/** Ids from the first of one range to that of the next: trusted and untrusted ones take turns, so neither ever has had one of the other. */
const step = 2 * (engineUsers.untrusted.first - engineUsers.trusted.first);
/** Above those of people in a directory, which no file of the host names (`../uids.ts`). */
const least = Math.ceil((2_000_200_000 - engineUsers.trusted.first) / step);
const most = Math.floor((firstUid - engineUsers.untrusted.first) / step) - 1;
/** A user, and those of its containers. */
const count = 65_537;

/** The first of a range that no user of the host has, as far as its files say that. */
export function aRange(user: EngineUser, lines = hostLines(), any = () => randomInt(least, most + 1)): number {
  const taken = lines.map(({ from, ids }) => [from, from + ids] as const);
  for (let tries = 0; ; tries++) {
    const first = user.first + step * any();
    if (tries > most || taken.every(([from, to]) => to <= first || from >= first + count)) return first;
  }
}

/** Ids that this host gives to its users. */
function hostLines(): readonly { readonly from: number; readonly ids: number }[] {
  return ['passwd', 'subuid', 'subgid'].flatMap((name) =>
    (attempt(() => readFileSync(`/etc/${name}`, 'utf8')) ?? '').split('\n').map((line) => {
      const [, second, third] = line.split(':');
      return name === 'passwd' ? { from: Number(third), ids: 1 } : { from: Number(second), ids: Number(third) };
    }),
  );
}

/**
 * Runs as root of the host in the namespaces of a new container. System calls by number: unshare, open_tree, mount_setattr, move_mount.
 * A path with a question mark is mapped if it can be: the files of a read-only folder are mostly open to all. Exit code 3: not on this host.
 */
const mapProgram = String.raw`
use strict; use warnings; use POSIX ();
my ($user, $from, $first, @paths) = @ARGV;
my (undef, undef, $uid, undef, undef, undef, undef, $home) = getpwnam $user;
die "not the container of an engine\n" if !defined $uid || $uid != $from;
sub refuse { print STDERR @_; exit 3 }
my $child = fork // die "fork: $!\n";
if (!$child) {
  print STDERR "namespace: $!\n" if syscall((POSIX::uname)[4] eq 'aarch64' ? 97 : 272, 0x10000000);
  kill STOP => $$;
}
waitpid $child, POSIX::WUNTRACED;
for my $map (qw(uid_map gid_map)) {
  open(my $file, '>', "/proc/$child/$map") or die "$map: $!\n";
  syswrite $file, "0 0 ${engineUsers.trusted.first}\n$from $first ${count}\n" or refuse "a user namespace ($!)";
}
open(my $ids, '<', "/proc/$child/ns/user") or die "namespace: $!\n";
my ($empty, $how) = ('', pack 'Q4', 0x100000, 0, 0, fileno $ids);
for (@paths) {
  my ($may, $path) = /^(\??)(.*)/s;
  my $tree = syscall(428, -100, $path, 0x88001);
  $tree >= 0 && syscall(442, $tree, $empty, 0x9000, $how, 32) == 0 && syscall(429, $tree, $empty, -100, $path, 0x14) == 0
    or $may or refuse "$path ($!)";
}
kill KILL => $child;
system('/bin/chown', '-R', "$first:$first", $home, "/run/$user") == 0 or die "chown failed\n";
for my $name (qw(passwd group subuid subgid)) {
  open(my $file, '+<', "/etc/$name") or die "$name: $!\n";
  my $text = join '', map { s/\b(\d+)(?=:)/$1 - $from + $first/ge if /^$user:/; $_ } <$file>;
  seek $file, 0, 0;
  print($file $text) && truncate($file, length $text) && close $file or die "$name: $!\n";
}
open(my $done, '>', '${inEngine.mapped}') or die "${inEngine.mapped}: $!\n";
`;

/** What could not be done. `isRefused`: this host never can. */
export interface Unmapped {
  readonly isRefused: boolean;
  readonly why: string;
}

/** Which ids agents have. */
export class OwnIds {
  /** By pool: why its agents share theirs. */
  readonly #shared = new Map<string, string>();

  /** Those of an agent whose folder is there; `user` itself if it shares them. @throws OnejobError E_NO_USER */
  async claim(pool: string, user: EngineUser, folder: string, { mounts }: Pick<Recipe, 'mounts'>): Promise<EngineUser> {
    if (idsObstacle() !== null || this.#shared.has(pool)) return user;
    // As root of the host, the program above must meet nothing there but the image. Config lets nobody mount such a folder.
    if (mounts.some(({ container }) => engineFileProblem(container) !== null)) return user;
    return { ...user, first: await claimUid(folder, () => aRange(user)) };
  }

  share(pool: string, why: string): void {
    this.#shared.set(pool, why);
  }

  findings(): Finding[] {
    const shares = (who: string, why: string) => {
      const so = 'A job can use up what the kernel counts by user for all of them.';
      return fine('containers', `${who} share user ids with others of the same trust, because ${why}. ${so}`);
    };
    const why = idsObstacle();
    if (why !== null) return [shares('Agents with containers', why)];
    const own = fine('containers', 'Each agent with containers has user ids of its own.');
    return [own, ...[...this.#shared].map(([pool, reason]) => shares(`But those of pool ${pool}`, reason))];
  }
}

/** Gives the users of a container, which has started and waits for it, the ids of `own`. null: done. `volumes`: with images. */
export async function mapIds(
  user: EngineUser,
  own: EngineUser,
  { id, pid }: { readonly id: string; readonly pid: number },
  { mounts, volumes }: Pick<Recipe, 'mounts'> & { readonly volumes: readonly string[] },
  signal: AbortSignal,
): Promise<Unmapped | null> {
  // Each container has mounts from a folder with its id, such as /etc/hosts. Another process may have its number where the Engine is elsewhere.
  if (!(await readFile(`/proc/${pid}/mountinfo`, 'utf8').catch(() => '')).includes(id))
    return { isRefused: true, why: 'onejob does not see the processes of its Engine' };
  const folders = mounts.map(({ container, readOnly }) => `${readOnly ? '?' : ''}${container}`);
  const bare = (path: string) => path.replace(/^\?/, '');
  const isWithin = (path: string) => folders.some((other) => other !== path && contains(bare(other), bare(path)));
  const args = [user.name, `${user.first}`, `${own.first}`, ...volumes, ...folders.filter((path) => !isWithin(path))];
  const into = ['--target', `${pid}`, '--mount', '--pid', '/usr/bin/perl', '-e', mapProgram, ...args];
  const { code, stderr } = await run('nsenter', into, { timeout: 10_000, signal });
  signal.throwIfAborted();
  if (code === 0) return null;
  if (code === 'ENOENT') return { isRefused: true, why: 'this host has no program nsenter' };
  if (code === 3) return { isRefused: true, why: `the kernel maps no ids of ${stderr.trim()}` };
  return { isRefused: false, why: stderr.trim() };
}
