/**
 * A private Docker Engine for tests that stop, kill or freeze one. It lives in a network namespace of its own, so that its
 * bridge and firewall rules never meet those of the machine's Engine (a second dockerd in the same namespace deletes the
 * first one's `docker0`), and has its own data, containerd and config. Closing it leaves nothing; should the test die
 * first, the kernel tells dockerd to end.
 */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { type Engine, engineAt, machineSocket } from './engine-http.ts';

export interface PrivateEngineOptions {
  /** Running containers outlive the daemon; default false, as Docker's own. */
  readonly liveRestore?: boolean;
  /** Put before PATH: for a stub `nvidia-container-runtime-hook`. */
  readonly path?: string;
  /** More of daemon.json. */
  readonly config?: Readonly<Record<string, unknown>>;
}

export interface PrivateEngine extends AsyncDisposable {
  readonly socket: string;
  /** For `DOCKER_HOST`. */
  readonly url: string;
  readonly dataRoot: string;
  readonly api: Engine;
  /** Pid of dockerd; null while it is stopped. */
  readonly pid: number | null;
  /** Its network namespace, which it also has after a new start. */
  readonly net: string;
  /** What dockerd has logged so far. */
  readonly log: string;
  start(): Promise<void>;
  /** SIGTERM, and waits for the end. */
  stop(): Promise<void>;
  /** SIGKILL, and waits for the end. */
  kill(): Promise<void>;
  /** SIGSTOP: answers nothing, but holds its socket open. */
  freeze(): void;
  thaw(): void;
  /** Copies an image from another Engine, by default the machine's. */
  load(image: string, from?: string): Promise<void>;
}

/** Starts one and waits until it answers; about a second. Needs `lacks('dockerd')` to be false. */
export async function privateEngine(options: PrivateEngineOptions = {}): Promise<PrivateEngine> {
  // Short: containerd's shims put sockets below it, and a socket's path may have 107 bytes.
  const dir = mkdtempSync(join(tmpdir(), 'ojd-'));
  const socket = join(dir, 'd.sock');
  writeFileSync(join(dir, 'daemon.json'), JSON.stringify({ 'live-restore': options.liveRestore ?? false, ...options.config }));
  const network = await networkNamespace();
  const net = `/proc/${network.pid}/ns/net`;
  const api = engineAt(socket);
  let daemon: ChildProcess | null = null;
  let log = '';

  async function start(): Promise<void> {
    if (daemon !== null) return;
    const child = spawn(
      'nsenter',
      [
        ...[`--net=${net}`, 'setpriv', '--pdeathsig', 'TERM', 'dockerd'],
        ...['--config-file', join(dir, 'daemon.json'), '--data-root', join(dir, 'data'), '--exec-root', join(dir, 'x')],
        ...['--pidfile', join(dir, 'd.pid'), '--host', `unix://${socket}`],
      ],
      {
        stdio: ['ignore', 'ignore', 'pipe'],
        env: { ...process.env, PATH: [options.path, process.env.PATH].filter(Boolean).join(':') },
      },
    );
    daemon = child;
    child.once('exit', () => {
      if (daemon === child) daemon = null;
    });
    const lines = createInterface({ input: child.stderr ?? process.stdin });
    const up = new Promise<boolean>((resolve) => {
      lines.on('line', (line) => {
        log += `${line}\n`;
        if (line.includes('API listen on')) resolve(true);
      });
      child.once('error', () => resolve(false));
      child.once('exit', () => resolve(false));
    });
    if (await up) return;
    throw new Error(`the private dockerd ended before it listened:\n${log.split('\n').slice(-15).join('\n')}`);
  }

  async function end(signal: NodeJS.Signals): Promise<void> {
    const child = daemon;
    if (child === null) return;
    const gone = once(child, 'exit');
    child.kill('SIGCONT');
    child.kill(signal);
    await gone;
    if (signal === 'SIGKILL') forgetPids(dir);
  }

  async function close(): Promise<void> {
    try {
      // Containers that outlived their daemon can only be ended through one.
      await start();
      const all = (await api.ok('GET', '/containers/json?all=1')) as { Id: string }[];
      await Promise.all(all.map(({ Id }) => api.call('DELETE', `/containers/${Id}?force=1&v=1`)));
      await end('SIGTERM');
    } finally {
      await end('SIGKILL');
      api[Symbol.dispose]();
      killAllNaming(dir);
      await network.close();
      unmountBelow(dir);
      // Those that were killed may not be gone yet.
      rmSync(dir, { recursive: true, force: true, maxRetries: 10, retryDelay: 50 });
    }
  }

  try {
    await start();
  } catch (error) {
    await close().catch(() => {});
    throw error;
  }
  return {
    socket,
    url: `unix://${socket}`,
    dataRoot: join(dir, 'data'),
    api,
    get pid() {
      return daemon?.pid ?? null;
    },
    net,
    get log() {
      return log;
    },
    start,
    stop: () => end('SIGTERM'),
    kill: () => end('SIGKILL'),
    freeze: () => void daemon?.kill('SIGSTOP'),
    thaw: () => void daemon?.kill('SIGCONT'),
    async load(image, from = machineSocket) {
      using source = engineAt(from);
      const tar = await source.stream('GET', `/images/${image}/get`);
      if (tar.statusCode !== 200) throw new Error(`no image ${image} at ${from}: ${tar.statusCode}`);
      const answer = await api.stream('POST', '/images/load?quiet=1', tar);
      let said = '';
      for await (const part of answer) said += part;
      if (answer.statusCode !== 200 || said.includes('"error"')) throw new Error(`cannot load ${image}: ${said}`);
    },
    [Symbol.asyncDispose]: close,
  };
}

/** A namespace that lives as long as this process, or until it is closed: its holder waits at the end of a pipe. */
async function networkNamespace(): Promise<{ pid: number; close: () => Promise<void> }> {
  const holder = spawn('unshare', ['-n', 'sh', '-c', 'ip link set lo up; echo; exec cat'], { stdio: ['pipe', 'pipe', 'inherit'] });
  await once(holder.stdout, 'data');
  const close = async (): Promise<void> => {
    const gone = once(holder, 'exit');
    holder.stdin.end();
    await gone;
  };
  return { pid: holder.pid ?? 0, close };
}

/**
 * After a kill: a new dockerd refuses to start, or waits in vain for its containerd, while these files name a process,
 * even one that is dead and only not yet reaped.
 */
function forgetPids(dir: string): void {
  const containerd = join(dir, 'x', 'containerd', 'containerd.pid');
  try {
    process.kill(Number(readFileSync(containerd, 'utf8')), 'SIGKILL');
  } catch {
    // It died with its parent.
  }
  rmSync(containerd, { force: true });
  rmSync(join(dir, 'd.pid'), { force: true });
}

/** Shims and their like, which carry the private directory in their arguments. */
function killAllNaming(dir: string): void {
  for (const pid of readdirSync('/proc').filter((name) => /^\d+$/.test(name))) {
    try {
      if (readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes(`${dir}/`)) process.kill(Number(pid), 'SIGKILL');
    } catch {
      // It ended meanwhile.
    }
  }
}

function unmountBelow(dir: string): void {
  if (!existsSync('/proc/self/mountinfo')) return;
  const points = readFileSync('/proc/self/mountinfo', 'utf8')
    .split('\n')
    .map((line) => line.split(' ')[4] ?? '')
    .filter((point) => point.startsWith(`${dir}/`));
  for (const point of points.reverse()) spawnSync('umount', ['-l', point]);
}
