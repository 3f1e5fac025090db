/**
 * A sandbox made by bubblewrap: its own mounts from an allow-list, processes, host name, IPC and, if wanted, network.
 *
 * As root, bubblewrap makes the mounts, since the state directory is closed to everybody else. `setpriv` then becomes the agent's
 * own user for good: without capabilities, and without a way to gain any. No user namespace is used there: measured, one that
 * maps root to another id leaves files of root readable. As a normal user the user namespace allows the mounts, and the job runs
 * as that user.
 */

import { existsSync, lstatSync, readdirSync, readlinkSync } from 'node:fs';
import type { SandboxSpec } from '../../ports/runtime.ts';
import { run } from '../../system/run.ts';
import { searchPath } from './programs.ts';
import { type Trial, trialLimit, wasLate } from './trials.ts';

/** User and group id of jobs in the sandbox, if they can be chosen. */
const inside = 1000;

interface Inside {
  readonly env: Readonly<Record<string, string>>;
  /** The agent's own user under root; null if not root. */
  readonly uid: number | null;
  /** Folder with `work`, `home`, `tmp`, `passwd` and `group`. */
  readonly folder: string;
  /** Options for its devices, from `deviceArgs`. */
  readonly devices: readonly string[];
  /** Options for the file with its name servers, if that is not the host's. */
  readonly names: readonly string[];
}

export function accounts(uid: number | null): { passwd: string; group: string } {
  const id = uid ?? inside;
  return {
    passwd: `root:x:0:0:root:/root:/bin/sh\njob:x:${id}:${id}::/home/job:/bin/sh\nnobody:x:65534:65534::/nonexistent:/bin/false\n`,
    group: `root:x:0:\njob:x:${id}:\nnogroup:x:65534:\n`,
  };
}

/** All of bubblewrap's options for one sandbox, for its `--args`. A seccomp filter is read from descriptor 6. */
/** What bubblewrap needs of this host: its folders, as options, and a seccomp filter; null: none. */
interface Shown {
  readonly mounts: readonly string[];
  readonly filter: Uint8Array | null;
}

export function bubblewrapArgs(
  host: Shown,
  { name, recipe, places: checked }: SandboxSpec,
  { env, uid, folder, devices, names }: Inside,
): string[] {
  const args = [...isolation(uid, recipe.network === 'none'), '--hostname', name.slice(0, 64), ...host.mounts];
  // Folders that bubblewrap creates above a mount are closed to all but root (seen with 0.8).
  const places = ['/home/job', ...Object.keys(recipe.tmpfs), ...recipe.mounts.map((mount) => mount.container)];
  args.push(...[...new Set(places.flatMap(ancestors))].flatMap((path) => ['--dir', path]));
  args.push('--dev', '/dev', ...devices);
  const size = recipe.shmSize === null ? [] : ['--size', String(recipe.shmSize)];
  args.push('--perms', '1777', ...size, '--tmpfs', '/dev/shm');
  args.push('--ro-bind', `${folder}/passwd`, '/etc/passwd', '--ro-bind', `${folder}/group`, '/etc/group');
  args.push(...names);
  args.push('--bind', `${folder}/tmp`, '/tmp', '--dir', '/var', '--symlink', '../tmp', '/var/tmp', '--dir', '/run');
  args.push('--bind', `${folder}/home`, '/home/job', '--bind', `${folder}/work`, '/workspace');
  for (const [container, options] of Object.entries(recipe.tmpfs)) {
    const bytes = tmpfsSize(options);
    args.push('--perms', '1777', ...(bytes === null ? [] : ['--size', String(bytes)]), '--tmpfs', container);
  }
  for (const [at, { host: path, container, readOnly }] of recipe.mounts.entries())
    args.push(readOnly ? '--ro-bind' : '--bind', checked?.[at] ?? path, container);
  for (const [name, value] of Object.entries(env)) args.push('--setenv', name, value);
  return [...args, '--chdir', '/workspace', '--json-status-fd', '5', ...(host.filter === null ? [] : ['--seccomp', '6'])];
}

/** Switches to a user that nothing else has, for good. `groups`: ids of its devices' groups. */
export function asUser(uid: number, groups: readonly number[] = []): string[] {
  const which = groups.length === 0 ? ['--clear-groups'] : [`--groups=${groups.join(',')}`];
  return ['setpriv', `--reuid=${uid}`, `--regid=${uid}`, ...which, '--bounding-set=-all', '--inh-caps=-all', '--no-new-privs'];
}

function isolation(uid: number | null, offline: boolean): string[] {
  const spaces = ['--unshare-ipc', '--unshare-pid', '--unshare-uts', '--unshare-cgroup-try', ...(offline ? ['--unshare-net'] : [])];
  const keep = ['--cap-drop', 'ALL', '--cap-add', 'CAP_SETUID', '--cap-add', 'CAP_SETGID', '--cap-add', 'CAP_SETPCAP'];
  const user = uid === null ? ['--unshare-user', '--uid', `${inside}`, '--gid', `${inside}`] : keep;
  // Its parent is the agent's supervisor, so no job depends on the manager.
  return [...spaces, ...user, '--die-with-parent', '--new-session', '--clearenv'];
}

/** The folders above an absolute path, outermost first. */
function ancestors(path: string): string[] {
  const names = path.split('/').filter(Boolean);
  return names.slice(1).map((_, i) => `/${names.slice(0, i + 1).join('/')}`);
}

/** Bytes of `size=64m` in mount options; null if it is not given. */
function tmpfsSize(options: string): number | null {
  const size = /(?:^|,)size=(\d+)([kmg]?)b?(?:,|$)/i.exec(options);
  if (size === null) return null;
  const unit = { '': 1, k: 1024, m: 1024 ** 2, g: 1024 ** 3 }[(size[2] ?? '').toLowerCase()] ?? 1;
  return Number(size[1]) * unit;
}

/**
 * Whether bubblewrap works here: a sandbox like a job's must run `true`, if possible under the filter. Containers and hardened kernels
 * often forbid what it needs, even if it is installed.
 */
export async function probeBubblewrap(
  signal: AbortSignal,
  uid: number | null = null,
  filter: Uint8Array | null = null,
): Promise<{ readonly sandbox: Trial; readonly filtered: Trial }> {
  const filtered: Trial =
    filter === null ? { end: 'absent', why: 'onejob has no filter for this processor.' } : await trySandbox(signal, uid, filter);
  // What runs under the filter runs without it, too.
  if (filter !== null && filtered.end !== 'fails') return { sandbox: filtered, filtered };
  const sandbox = await trySandbox(signal, uid, null);
  if (sandbox.end !== 'works') return { sandbox, filtered };
  return { sandbox: { end: 'works', why: `${sandbox.why} Without seccomp: ${filtered.why}` }, filtered };
}

async function trySandbox(signal: AbortSignal, uid: number | null, filter: Uint8Array | null): Promise<Trial> {
  const args = [...isolation(uid, false), '--hostname', 'probe', ...hostMounts(), '--dev', '/dev'];
  if (filter !== null) args.push('--seccomp', '0');
  args.push('--perms', '1777', '--tmpfs', '/tmp', '--chdir', '/tmp', '--', ...(uid === null ? [] : asUser(uid)), 'true');
  const ended = await run('bwrap', args, { input: filter ?? '', signal, timeout: trialLimit, env: { PATH: searchPath } });
  const { code, error, stderr } = ended;
  if (error === null) return { end: 'works', why: 'Bubblewrap is installed and a probe sandbox ran.' };
  if (code === 'ENOENT') return { end: 'absent', why: 'Bubblewrap (the program "bwrap") is not installed.' };
  if (wasLate(ended) || signal.aborted)
    return { end: 'late', why: `Bubblewrap is installed, and a probe sandbox did not run within ${trialLimit / 1_000} s.` };
  const lastLine = stderr.trim().split('\n').at(-1) || `it ended with ${code ?? 'a signal'}`;
  return { end: 'fails', why: `Bubblewrap is installed but a probe sandbox failed: ${lastLine.replace(/\.$/, '')}.` };
}

/**
 * What to do about a sandbox that did not run. `setting`: reads a file below `/proc/sys`; empty if it is not there.
 * https://documentation.ubuntu.com/release-notes/24.04/#unprivileged-user-namespace-restrictions
 */
export function bubblewrapFix({ end }: Pick<Trial, 'end'>, setting: (name: string) => string): string {
  if (end === 'absent') return 'Install bubblewrap: apt-get install bubblewrap.';
  const is = (name: string, value: string): boolean => setting(name).trim() === value;
  if (is('user/max_user_namespaces', '0'))
    return 'User namespaces are turned off here. As root, type "sysctl -w user.max_user_namespaces=15000", and keep that line in /etc/sysctl.d.';
  if (is('kernel/unprivileged_userns_clone', '0'))
    return 'User namespaces are for root only here. As root, type "sysctl -w kernel.unprivileged_userns_clone=1", and keep that line in /etc/sysctl.d.';
  if (is('kernel/apparmor_restrict_unprivileged_userns', '1'))
    return 'AppArmor allows user namespaces only to programs that have a profile. As root, type "apt-get install apparmor-profiles && ln -s /usr/share/apparmor/extra-profiles/bwrap-userns-restrict /etc/apparmor.d/ && systemctl reload apparmor".';
  return 'The kernel, an AppArmor profile or a container around onejob may forbid it: "bwrap --unshare-user --ro-bind / / true" says what, "dmesg" says who.';
}

export const etcNames = [
  'alternatives',
  'bash_completion.d',
  'ca-certificates',
  'ca-certificates.conf',
  'crypto-policies',
  'debian_version',
  'fonts',
  'gai.conf',
  'host.conf',
  'hosts',
  'java*',
  'ld.so.*',
  'localtime',
  'locale.alias',
  'locale.conf',
  'magic',
  'magic.mime',
  'mime.types',
  'networks',
  'nsswitch.conf',
  'os-release',
  'perl',
  'pki',
  'protocols',
  'python*',
  'resolv.conf',
  'services',
  'terminfo',
  'timezone',
];
const etc = new RegExp(`^(${etcNames.map((name) => name.replaceAll('.', '\\.').replaceAll('*', '.*')).join('|')})$`);
const ssl = ['/etc/ssl/certs', '/etc/ssl/openssl.cnf', '/etc/ssl/cert.pem'];

/**
 * Bubblewrap's options for the parts of the host that a job sees: programs, libraries, and the files of /etc that programs need
 * to find libraries, names and certificates. Never `/`, `/run`, `/var`, homes, or anything that could hold a secret.
 */
export function hostMounts(): string[] {
  const args: string[] = [];
  for (const name of ['bin', 'sbin', ...readdirSync('/').filter((name) => /^lib/.test(name))]) {
    const path = `/${name}`;
    const kind = lstatSync(path, { throwIfNoEntry: false });
    if (kind?.isSymbolicLink()) args.push('--symlink', readlinkSync(path), path);
    else if (kind?.isDirectory()) args.push('--ro-bind', path, path);
  }
  // /usr/local may be its own file system. Binds are recursive, so it is included.
  for (const path of ['/usr', '/opt', '/nix', '/gnu']) args.push('--ro-bind-try', path, path);
  args.push('--dir', '/etc', '--dir', '/etc/ssl');
  for (const name of readdirSync('/etc').filter((name) => etc.test(name)))
    args.push('--ro-bind-try', `/etc/${name}`, `/etc/${name}`);
  for (const path of ssl) args.push('--ro-bind-try', path, path);
  args.push('--proc', '/proc');
  // It names the keys of the user who started the manager, if their keyring is inherited.
  if (existsSync('/proc/keys')) args.push('--ro-bind', '/dev/null', '/proc/keys');
  return args;
}
