/**
 * A host as people have them today, for what no container shows: Debian 13 with systemd, cgroup v2 and an Engine, on a kernel and a
 * disk of its own. The kernel is an ordinary process (user-mode Linux), so it needs root and no KVM. What it is made of is made once, and
 * kept for the next run.
 *
 *     npx node test/hosts/machine.ts [DISK]    boots one (of a kept disk), and opens a shell in it
 */
import { execFile, execFileSync, spawn, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { existsSync, linkSync, mkdirSync, mkdtempSync, openSync, readFileSync, rmSync, statfsSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { type Child, startChild } from '../support/child.ts';
import { hasGo, inCache, madeOnce } from '../support/go-program.ts';
import { buildEngines } from './engine.ts';
import { openWire, type Wire } from './wire.ts';

/** Named by what makes it, so that whoever changes that has it made anew. */
function part(name: string, makers: readonly string[]): string {
  const sum = createHash('sha256');
  for (const file of makers) sum.update(readFileSync(join(import.meta.dirname, file)));
  return inCache(`host-${name}-${sum.digest('hex').slice(0, 12)}`);
}

const parts = () => ({
  kernel: part('kernel', ['kernel.sh', 'kernel.config']),
  engine: part('engine', ['engine.ts']),
  disk: part('disk', ['disk.sh', 'engine.ts']),
});

/** What building them takes, with room for one machine's disk. */
const room = 6 * 2 ** 30;

/** Why no such machine can be had here, as a sentence's end; null when it can. */
export function lacksHost(): string | null {
  if (process.getuid?.() !== 0) return 'not run as root';
  if (process.arch !== 'x64') return `user-mode Linux is for x64, and this machine is ${process.arch}`;
  if (!existsSync('/dev/net/tun')) return 'no /dev/net/tun for its network';
  const { kernel, disk } = parts();
  const needed = ['unshare', 'nsenter', 'setpriv', 'pgrep', 'ip', 'ssh'];
  if (![kernel, disk].every(existsSync)) {
    const { bavail, bsize } = statfsSync(existsSync(dirname(disk)) ? dirname(disk) : tmpdir());
    if (bavail * bsize < room) return `less than 6 GB of disk are free in ${dirname(disk)}`;
    needed.push('debootstrap', 'mkfs.ext4', 'ssh-keygen', 'gcc', 'make', 'flex', 'bison', 'bc', 'xz');
    if (!hasGo()) return '"go" is not installed to build its Engine';
    if (spawnSync('pkg-config', ['libseccomp']).status !== 0) return 'not installed: pkg-config with libseccomp-dev';
  }
  const look = 'for name; do command -v "$name" >/dev/null || echo "$name"; done';
  const missing = spawnSync('sh', ['-c', look, 'sh', ...needed], { encoding: 'utf8' }).stdout.trim();
  return missing === '' ? null : `not installed: ${missing.replaceAll('\n', ', ')}`;
}

const run = promisify(execFile);

/** Folder with the programs of the Engines that are built here, each below its number; made if they are missing. */
export async function builtEngines(): Promise<string> {
  const { engine } = parts();
  await madeOnce(engine, buildEngines);
  return engine;
}

/** Makes what is missing: half an hour on two cores. @throws Error with what a script said */
export async function makeHost(): Promise<void> {
  const shell = async (script: string, ...words: string[]) => {
    // What is mounted meanwhile is gone with it.
    const own = ['--mount', '--propagation', 'private', join(import.meta.dirname, script), ...words];
    await run('unshare', own, { maxBuffer: 2 ** 26 }).catch((error: Error & { stdout: string; stderr: string }) => {
      throw new Error(`${script} failed:\n${error.stdout.slice(-2_000)}${error.stderr.slice(-2_000)}`);
    });
  };
  const { kernel, disk } = parts();
  await madeOnce(kernel, (half) => shell('kernel.sh', half));
  if (existsSync(disk)) return;
  const engine = await builtEngines();
  await madeOnce(disk, (half) => shell('disk.sh', half, engine));
}

export interface Host extends AsyncDisposable {
  /** A folder of this machine, which is the host's `/mnt`. */
  readonly share: string;
  /** From its next boot on, programs in it reach that port of this machine's loopback at `wireAddress`. */
  lend(port: number): Promise<void>;
  /** Boots it. Resolves once systemd has started everything; `soon`: once scripts can be started. */
  boot(soon?: 'soon'): Promise<void>;
  /** A shell in it, for a person. */
  shell(): Promise<void>;
  /** Starts `script` as root. */
  start(script: string): Child;
  /** Runs it to its end, and returns its standard output. @throws Error with all output when it fails */
  sh(script: string): Promise<string>;
  /** A power cut. Its disk keeps only what its kernel had written there. */
  cut(): Promise<void>;
  /** Switches it off in order. */
  off(): Promise<void>;
  /** The end of what it printed on its console, and where its files are. */
  look(): string;
}

/**
 * A new machine, not booted yet. `kept`: with the disk of an earlier one. `setup`: a script of setups.ts, else it has Engine 29 as that
 * comes. `ONEJOB_KEEP_HOST=1` keeps its folder.
 */
export function createHost(kept?: string, setup?: string): Host {
  const folder = mkdtempSync(join(tmpdir(), 'oj-host-'));
  const { kernel, disk } = parts();
  const [own, share, log] = [kept ?? join(folder, 'disk.ext4'), join(folder, 'share'), join(folder, 'console.log')];
  mkdirSync(share);
  linkSync(join(disk, 'image.tar'), join(share, 'image.tar'));
  if (setup !== undefined) writeFileSync(join(share, 'setup'), setup);
  if (kept === undefined) execFileSync('cp', ['--sparse=always', '--reflink=auto', join(disk, 'disk.ext4'), own]);
  const wires: Wire[] = [];
  let power: { readonly first: number; readonly ended: Promise<void>; isOn: boolean } | null = null;

  async function boot(soon?: 'soon'): Promise<void> {
    const out = openSync(log, 'a');
    const spaces = ['--net', '--mount', '--pid', '--fork', '--kill-child', '--propagation', 'private'];
    // Whatever happens to this process, the machine does not outlive it.
    const words = ['--pdeathsig', 'KILL', 'unshare', ...spaces, join(import.meta.dirname, 'boot.sh'), kernel, own, share];
    const machine = spawn('setpriv', words, { stdio: ['ignore', out, out] });
    const now = { first: 0, isOn: true };
    const ended = once(machine, 'exit').then(() => {
      now.isOn = false;
    });
    while (now.isOn && now.first === 0) {
      now.first = Number(spawnSync('pgrep', ['-P', String(machine.pid)], { encoding: 'utf8' }).stdout.trim());
      await sleep(20);
    }
    power = Object.assign(now, { ended });
    for (const wire of wires) await wire.plug(now.first);
    for (let state = ''; !/^(running|degraded)/.test(state); await sleep(200)) {
      if (!now.isOn) throw new Error(`the machine did not boot:\n${look()}`);
      state = (await start(soon === undefined ? 'systemctl is-system-running --wait' : 'echo running').ended).stdout;
    }
  }

  function words(...last: string[]): string[] {
    const ssh = ['ssh', '-q', '-F', 'none', '-i', join(disk, 'key'), '-o', 'BatchMode=yes', '-o', 'ConnectTimeout=5'];
    for (const option of ['UserKnownHostsFile=/dev/null', 'StrictHostKeyChecking=no', 'ControlMaster=auto', 'ControlPersist=yes'])
      ssh.push('-o', option);
    const inside = ['-t', String(power?.first), '--net', '--mount', '--pid', '--'];
    // Its socket is in the machine's own tmpfs.
    return [...inside, ...ssh, '-o', 'ControlPath=/mnt/ssh', ...last];
  }

  const start = (script: string): Child =>
    startChild('nsenter', words('root@10.0.2.15', script), { cwd: '/', env: { PATH: process.env.PATH } });

  async function shell(): Promise<void> {
    await once(spawn('nsenter', words('-t', 'root@10.0.2.15'), { stdio: 'inherit' }), 'exit');
  }

  async function sh(script: string): Promise<string> {
    const { code, signal, stdout, stderr } = await start(script).ended;
    if (code === 0) return stdout;
    throw new Error(`"${script}" ended with ${code ?? signal}:\n${stdout}${stderr}`);
  }

  async function cut(): Promise<void> {
    if (power === null) return;
    if (power.isOn) process.kill(power.first, 'SIGKILL');
    await power.ended;
    await unplugged();
  }

  async function unplugged(): Promise<void> {
    power = null;
    for (const wire of wires) await wire.unplug();
  }

  async function off(): Promise<void> {
    if (power === null) return;
    const { ended } = power;
    await start('systemctl poweroff').ended;
    await Promise.race([ended, sleep(90_000, null, { ref: false })]);
    if (power.isOn) throw new Error(`the machine does not switch itself off:\n${look()}`);
    await unplugged();
  }

  const look = (): string => `${readFileSync(log, 'utf8').slice(-2_000)}\nIts disk, console and share are in ${folder}.`;

  async function end(): Promise<void> {
    await cut();
    for (const wire of wires) await wire[Symbol.asyncDispose]();
    if (process.env.ONEJOB_KEEP_HOST !== '1') rmSync(folder, { recursive: true, force: true });
  }
  const lend = async (port: number): Promise<void> => void wires.push(await openWire(port, join(folder, `${port}.sock`)));
  return { share, lend, boot, shell, start, sh, cut, off, look, [Symbol.asyncDispose]: end };
}

if (import.meta.main) {
  const why = lacksHost();
  if (why !== null) {
    console.error(`A host cannot be had here: ${why}.`);
    process.exit(1);
  }
  await makeHost();
  await using host = createHost(process.argv[2]);
  await host.boot();
  console.log(host.look());
  await host.shell();
  await host.off();
}
