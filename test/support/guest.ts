/**
 * A machine with a real systemd and without Node, in systemd-nspawn: for what `onejob service` and `install.sh` do. It has processes,
 * files and a network of its own, and boots in about a second. Its root is made once, and kept for the next run.
 *
 *     node test/support/guest.ts    makes its roots now
 */
import { execFileSync, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { type Child, startChild } from './child.ts';

/** The number is of what is in it: another one makes it anew. */
const kept = join(tmpdir(), 'onejob-ci-cache', 'systemd-2.tar');
/** The same with cloud-init. */
const keptCloud = join(tmpdir(), 'onejob-ci-cache', 'cloud-init-2.tar');
const packages = 'systemd,systemd-sysv,dbus,dbus-user-session,libpam-systemd,bubblewrap,passt,man-db';

export interface GuestOptions {
  /**
   * It is a machine of a cloud: it has cloud-init, and is in this machine's network, without the right to change it. Changes the
   * machine's files before it boots.
   */
  readonly cloud?: (root: string) => void;
}

export interface Guest extends AsyncDisposable {
  /** Where its files are on this machine. */
  readonly root: string;
  /** Its first process, on this machine. */
  readonly pid: number;
  /** Starts `script` with `sh`, as root or as another user. */
  start(script: string, user?: string): Child;
  /** Resolves once it is switched off; a reboot does not count. */
  readonly gone: Promise<void>;
  /** Runs it to its end, and returns its standard output. @throws Error with all output when it exits with another code than `code` */
  sh(script: string, options?: { readonly user?: string; readonly code?: number }): Promise<string>;
}

function makeRoot(): void {
  if (existsSync(kept)) return;
  mkdirSync(join(kept, '..'), { recursive: true, mode: 0o700 });
  const work = mkdtempSync(join(tmpdir(), 'onejob-guest-'));
  try {
    const suite = /VERSION_CODENAME=(\S+)/.exec(readFileSync('/etc/os-release', 'utf8'))?.[1] ?? 'stable';
    const wanted = ['--format', '$(REPO_URI)', 'Created-By: Packages', 'Component: main', `Codename: ${suite}`];
    const [mirror = ''] = execFileSync('apt-get', ['indextargets', ...wanted], { encoding: 'utf8' }).split('\n');
    const made = spawnSync('debootstrap', ['--variant=minbase', `--include=${packages}`, suite, join(work, 'root'), mirror], {
      encoding: 'utf8',
    });
    if (made.status !== 0) throw new Error(`debootstrap ended with ${made.status}: ${made.stdout.slice(-2_000)}${made.stderr}`);
    rmSync(join(work, 'root/var/cache/apt/archives'), { recursive: true });
    execFileSync('tar', ['-C', join(work, 'root'), '-cf', `${kept}.${process.pid}`, '.']);
    renameSync(`${kept}.${process.pid}`, kept);
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

/** debootstrap itself cannot install cloud-init: its Python packages run code before all of Python is there. */
function makeCloudRoot(): void {
  makeRoot();
  if (existsSync(keptCloud)) return;
  const work = mkdtempSync(join(tmpdir(), 'onejob-guest-'));
  const inside = (...words: string[]) => {
    const made = spawnSync('chroot', [work, 'env', 'DEBIAN_FRONTEND=noninteractive', ...words], { encoding: 'utf8' });
    if (made.status !== 0)
      throw new Error(`${words.join(' ')} ended with ${made.status}: ${made.stdout.slice(-2_000)}${made.stderr}`);
  };
  try {
    execFileSync('tar', ['-C', work, '-xf', kept]);
    inside('apt-get', 'update');
    inside('apt-get', 'install', '-y', '--no-install-recommends', 'cloud-init', 'curl');
    inside('sh', '-c', 'rm -rf /var/cache/apt /var/lib/apt/lists /usr/share/doc /usr/share/locale');
    execFileSync('tar', ['-C', work, '-cf', `${keptCloud}.${process.pid}`, '.']);
    renameSync(`${keptCloud}.${process.pid}`, keptCloud);
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

export async function guest({ cloud }: GuestOptions = {}): Promise<Guest> {
  if (cloud === undefined) makeRoot();
  else makeCloudRoot();
  const root = mkdtempSync(join(tmpdir(), 'oj-guest-'));
  execFileSync('tar', ['-C', root, '-xf', cloud === undefined ? kept : keptCloud]);
  cloud?.(root);
  const how = ['--register=no', '--keep-unit', '--boot', '--console=pipe', '--quiet'];
  let said = '';
  const boot = () => {
    const words = ['-D', root, ...how, ...(cloud === undefined ? ['--private-network'] : [])];
    const booted = spawn('systemd-nspawn', words, { stdio: ['ignore', 'pipe', 'pipe'] });
    for (const stream of [booted.stdout, booted.stderr])
      stream.on('data', (text) => {
        said = (said + text).slice(-4_000);
      });
    return booted;
  };
  let machine = boot();
  let isGone = false;
  const gone = (async () => {
    // How systemd-nspawn says that the machine wants to boot again.
    while ((await once(machine, 'exit'))[0] === 133) machine = boot();
    isGone = true;
  })();

  const leader = (): number | null => {
    const found = spawnSync('pgrep', ['-P', String(machine.pid)], { encoding: 'utf8' }).stdout.trim();
    return found === '' ? null : Number(found.split('\n')[0]);
  };
  const variables = (home: string, uid: number) => [
    ...['PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin', `HOME=${home}`, 'LANG=C.UTF-8', 'NO_COLOR=1'],
    `XDG_RUNTIME_DIR=/run/user/${uid}`,
  ];
  const start: Guest['start'] = (script, user) => {
    const inside = ['-t', String(leader()), '-m', '-p', '-u', '-i', '-n', '-r', '-w', '--'];
    const entry =
      user === undefined ? null : new RegExp(`^${user}:x:(\\d+):(\\d+):`, 'm').exec(readFileSync(join(root, 'etc/passwd'), 'utf8'));
    const [, uid = '0', gid = '0'] = entry ?? [];
    const home = user === undefined ? '/root' : `/home/${user}`;
    const as = user === undefined ? [] : ['setpriv', `--reuid=${uid}`, `--regid=${gid}`, '--init-groups'];
    const words = [...inside, ...as, 'env', '-i', ...variables(home, Number(uid)), 'sh', '-c', `cd; ${script}`];
    const child = startChild('nsenter', words, { cwd: '/', env: { PATH: process.env.PATH } });
    // A shutdown stops all processes for a moment. nsenter then stops itself, outside, where nobody continues it: the machine would
    // wait for it for ever.
    const timer = setInterval(() => child.signal('SIGCONT'), 500);
    void child.ended.then(() => clearInterval(timer));
    return child;
  };
  const sh: Guest['sh'] = async (script, { user, code = 0 } = {}) => {
    const ended = await start(script, user).ended;
    if (ended.code === code) return ended.stdout + (code === 0 ? '' : ended.stderr);
    throw new Error(`"${script}" ended with ${ended.code}:\n${ended.stdout}${ended.stderr}`);
  };
  try {
    for (let state = ''; !/^(running|degraded)/.test(state); await sleep(50)) {
      if (isGone) throw new Error(`systemd-nspawn ended with ${machine.exitCode}:\n${said}`);
      state = leader() === null ? '' : (await start('systemctl is-system-running 2>&1').ended).stdout;
    }
  } catch (error) {
    await end();
    throw error;
  }

  async function end(): Promise<void> {
    // systemd-nspawn then switches the machine off, as by its button.
    machine.kill('SIGTERM');
    const hurry = setTimeout(() => machine.kill('SIGKILL'), 20_000);
    await gone;
    clearTimeout(hurry);
    rmSync(root, { recursive: true, force: true });
  }
  return { root, pid: leader() ?? 0, start, sh, gone, [Symbol.asyncDispose]: end };
}

if (import.meta.main) makeCloudRoot();
