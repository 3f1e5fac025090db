/**
 * Held sandboxes: folders of agents whose processes have ended. A shell is a process of the manager in the same folders, as the same
 * user and in the same isolation. With bubblewrap it ends with the manager; without, the next manager ends it.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { Readable, Writable } from 'node:stream';
import { abortable } from '../../base/abortable.ts';
import { messageOf, OnejobError } from '../../base/errors.ts';
import { quoted } from '../../base/quoted.ts';
import type { AgentId } from '../../core/slot.ts';
import type { Holding, RunningShell, ShellSpec } from '../../ports/runtime.ts';
import { markVariable } from '../../system/process-identity.ts';
import { placedOf } from '../mounts.ts';
import { keepUid } from '../uids.ts';
import { makeCgroups } from './cgroup.ts';
import { type Intent, intentOf, requireIntent } from './folder.ts';
import type { ProcessHost } from './host.ts';
import { childOf, entering, networkCommand, type Uplink } from './network.ts';
import { checkFolders, checkRecipe, confined, grantDevices, type SandboxPlace } from './prepare.ts';
import { isInstalled, pipes, searchPath } from './programs.ts';
import { type Inside, type StartedSandbox, verifyInside } from './release.ts';
import { emptySandbox } from './remove.ts';

export class ProcessHolding implements Holding {
  readonly #host: ProcessHost;
  /** Removes a held sandbox. */
  readonly release: (agent: AgentId) => Promise<void>;
  /** Number of shells by agent. */
  readonly #open = new Map<AgentId, number>();

  constructor(host: ProcessHost, remove: (agent: AgentId) => Promise<void>) {
    this.#host = host;
    this.release = remove;
  }

  async hold(agent: AgentId): Promise<boolean> {
    const about = intentOf(this.#host, agent);
    if (about === null) return false;
    await emptySandbox(this.#host, about);
    if (about.uid !== null) await keepUid(about.uid, join(this.#host.at.agents, agent));
    return true;
  }

  async shell(agent: AgentId, shell: ShellSpec, signal: AbortSignal): Promise<RunningShell> {
    const host = this.#host;
    const about = requireIntent(host, agent);
    if (about.mode !== host.mode) throw otherMode(agent, about.mode);
    checkRecipe(host, shell.spec.recipe);
    await checkFolders(shell.spec.recipe);
    const placed = host.mode === 'bubblewrap' ? placedOf(shell.spec) : [];
    if (shell.terminal !== null && !(await isInstalled('script'))) throw noTerminal();
    const own = randomBytes(4).toString('hex');
    const files = { args: `args.${own}`, status: `status.${own}`, outputs: [`out.${own}`, `err.${own}`] as const };
    this.#open.set(agent, (this.#open.get(agent) ?? 0) + 1);
    const ends: (() => void)[] = [];
    const leave = () => {
      for (const end of ends) end();
      return this.#leave(about, [files.args, files.status, ...files.outputs]);
    };
    let child: ChildProcess;
    let opened: RunningShell;
    try {
      child = await this.#start(about, shell, { ...files, waits: placed.length > 0 }, ends, signal);
      opened = running(child, shell.terminal !== null, signal, leave);
    } catch (error) {
      await leave();
      throw error;
    }
    const hasEnded = () => child.exitCode !== null || child.signalCode !== null;
    const sandbox = { clock: host.clock, agent, path: join(host.at.agents, agent), hasEnded };
    await letGo(sandbox, child, opened, { name: shell.spec.name, status: files.status, placed }, signal);
    return opened;
  }

  /** All of a shell is in the folder of its agent. */
  async sweep(): Promise<void> {}

  /** Starts the program of a shell. `ends` gets what ends the network that is made for it. */
  async #start(about: Intent, shell: ShellSpec, own: ShellFiles, ends: (() => void)[], signal: AbortSignal): Promise<ChildProcess> {
    const host = this.#host;
    const { agent, uid, files } = about;
    const { args, status, outputs, waits } = own;
    // Its processes have the mark and the groups of the held sandbox, by which they are found.
    const spec = { ...shell.spec, agent };
    const grant = grantDevices(host, spec);
    const { paths } = makeCgroups(host.cgroups, agent, spec.recipe);
    const folder = join(host.at.agents, agent);
    const how = await confined(host, spec, { uid, files, folder, grant, args, status }, program(shell, waits));
    const { uplink } = how;
    const network = uplink === null ? null : await startNetwork(folder, host, { agent, uplink }, signal);
    ends.push(() => network?.end());
    signal.throwIfAborted();
    const child = start(folder, agent, host.inherited, [
      'umask 022',
      ...(shell.terminal === null ? namedOutput(outputs, uid) : []),
      ...paths.map((group) => `echo 0 >${quoted(`${group}/cgroup.procs`)} || exit 125`),
      ...(how.cores ? [] : ['ulimit -c 0']),
      `{ echo ${spec.recipe.oomScoreAdj} >/proc/self/oom_score_adj; } 2>/dev/null`,
      `exec ${how.open.join(' ')}`,
      ...(how.cwd === null ? [] : [`cd ${quoted(how.cwd)} || exit 125`]),
      `exec ${network?.enter ?? ''} ${how.command.map(quoted).join(' ')}`,
    ]);
    await once(child, 'spawn').catch((cause: unknown) => {
      const message = `Cannot open a shell: failed to start /bin/sh (${messageOf(cause)}).`;
      throw new OnejobError('E_SPAWN', message, { retry: true, cause, hint: 'Check for a limit on processes or memory.' });
    });
    return child;
  }

  async #leave(about: Intent, files: readonly string[]): Promise<void> {
    const { agent } = about;
    for (const name of files) await rm(join(this.#host.at.agents, agent, name), { force: true });
    const left = (this.#open.get(agent) ?? 1) - 1;
    if (left > 0) this.#open.set(agent, left);
    else this.#open.delete(agent);
    // What a shell has started may keep running.
    if (left <= 0 && intentOf(this.#host, agent) !== null) await emptySandbox(this.#host, about);
  }
}

/** Files of one shell in the folder of its agent. `waits`: for a first line, before anything runs. */
interface ShellFiles extends Pick<SandboxPlace, 'args' | 'status'> {
  readonly outputs: readonly [string, string];
  readonly waits: boolean;
}

function otherMode(agent: AgentId, mode: Intent['mode']): OnejobError {
  const message = `Cannot open a shell in the sandbox of agent ${agent}: it ran ${mode === 'plain' ? 'without' : 'with'} bubblewrap, and onejob now starts sandboxes in another way.`;
  return new OnejobError('E_SHELL', message, { hint: 'See "onejob doctor".' });
}

function noTerminal(): OnejobError {
  return new OnejobError('E_SHELL', 'Cannot open a terminal: the program "script" was not found on the host of the daemon.', {
    hint: 'Install it (Debian: bsdutils; Fedora: util-linux-script), or run a command without a terminal: onejob shell JOB -- ls -l',
  });
}

/**
 * `script` makes a terminal inside the sandbox, so none of the host's is in reach. Descriptor 3 brings its size, a line for each
 * change. `waits`: nothing runs before a first line there.
 */
function program({ command, terminal }: ShellSpec, waits: boolean): string[] {
  const best = 'command -v bash >/dev/null 2>&1 && exec bash; exec sh';
  const run = command === null ? best : `exec ${command.map(quoted).join(' ')}`;
  const gate = waits ? ['/bin/sh', '-c', 'read -r _ <&3 || exit 125; exec "$0" "$@"'] : [];
  if (terminal === null) return [...gate, '/bin/sh', '-c', `exec 3<&-; ${run}`];
  const inside = [
    `stty sane cols ${terminal.columns} rows ${terminal.rows}`,
    `export TERM=${quoted(terminal.term)}`,
    '{ while IFS=" " read -r c r; do stty cols "$c" rows "$r" <&1; done; } <&3 2>/dev/null &',
    'exec 3<&-',
    run,
  ];
  return [...gate, 'script', '--quiet', '--return', '--flush', '--command', inside.join('\n'), '/dev/null'];
}

/** Lets a shell run once its folders are those that were checked. @throws OnejobError E_MOUNT_CHANGED, E_GATE_ENDED; it has ended then */
async function letGo(
  sandbox: StartedSandbox,
  child: ChildProcess,
  shell: RunningShell,
  inside: Inside,
  signal: AbortSignal,
): Promise<void> {
  if (inside.placed.length === 0) return;
  try {
    await verifyInside(sandbox, inside, signal);
    (child.stdio[3] as Writable).write('\n');
  } catch (error) {
    child.kill('SIGKILL');
    for (const pipe of [child.stdout, child.stderr]) pipe?.destroy();
    await shell.ended.catch(() => {});
    throw error;
  }
}

/**
 * The manager reads from sockets, which no program can open again by name, as in `>/dev/stderr`. So the output goes through pipes
 * that belong to the shell's user. Their readers do not belong to the sandbox: they end with the last writer. Nothing waits for them
 * but the end of the output. All ends are open before a reader starts: one that waited for a writer would do so for ever if the
 * shell was killed meanwhile. Exported for tests.
 */
export function namedOutput([out, err]: readonly [string, string], uid: number | null): string[] {
  const others = '3<&- 5<&- 6<&- 7<&- 8<&-';
  const reader = (end: number, to: string) => `(unset ${markVariable}; exec cat <&${end} ${others} ${to}) &`;
  return [
    `mkfifo -m 600 ${out} ${err} || exit 125`,
    ...(uid === null ? [] : [`chown ${uid} ${out} ${err} || exit 125`]),
    // Read-write does not wait.
    `exec 7<>${out} 8<>${err} 5<${out} 6<${err}`,
    reader(5, '2>/dev/null'),
    reader(6, '>&2 2>/dev/null'),
    `exec >${out} 2>${err} 5<&- 6<&- 7<&- 8<&-`,
    `rm -f ${out} ${err}`,
  ];
}

function start(folder: string, agent: AgentId, inherited: readonly number[], script: readonly string[]): ChildProcess {
  return spawn('/bin/sh', ['-c', script.join('\n')], {
    cwd: folder,
    stdio: pipes(4, inherited),
    env: { PATH: searchPath, [markVariable]: agent },
  });
}

/**
 * The network of a shell, which ends with this manager. `enter`: for a shell, how to start a command in it.
 * @throws OnejobError E_SHELL
 */
async function startNetwork(
  folder: string,
  { root, inherited }: Pick<ProcessHost, 'root' | 'inherited'>,
  { agent, uplink }: { readonly agent: AgentId; readonly uplink: Uplink },
  signal: AbortSignal,
): Promise<{ readonly enter: string; end(): void }> {
  const child = start(folder, agent, inherited, [`exec 3<&- 2>&1 ${networkCommand(root, uplink)}`]);
  const [, stdout] = child.stdio as unknown as [Writable, Readable];
  for (const pipe of child.stdio) pipe?.on('error', () => {});
  const stop = (): void => void child.kill('SIGKILL');
  signal.addEventListener('abort', stop, { once: true });
  let lastLine = 'it ended';
  for await (const line of createInterface({ input: stdout })) {
    const holder = line === 'ready' && child.pid !== undefined ? childOf(child.pid) : null;
    if (holder !== null) return { enter: entering(root, holder), end: stop };
    lastLine = line;
  }
  const message = `Cannot open a shell: failed to make its network (${lastLine}).`;
  throw new OnejobError('E_SHELL', message, { retry: true, hint: 'Type "onejob doctor" to see what is missing.' });
}

/** `left`: ends what the program has left behind. Exported for tests. */
export function running(child: ChildProcess, hasTerminal: boolean, signal: AbortSignal, left: () => Promise<void>): RunningShell {
  const [stdin, stdout, stderr, size] = child.stdio as unknown as [Writable, Readable, Readable, Writable];
  for (const pipe of [stdin, stdout, stderr, size]) pipe.on('error', () => {});
  const kill = () => void child.kill('SIGKILL');
  signal.addEventListener('abort', kill, { once: true });
  if (signal.aborted) kill();
  const exited = once(child, 'exit').then(([code]) => {
    // What it has left in the background may hold the pipes for ever.
    for (const pipe of [stdin, size]) pipe.destroy();
    return typeof code === 'number' ? code : 137;
  });
  const closed = once(child, 'close');
  closed.catch(() => {});
  const ended = async (): Promise<number> => {
    try {
      const code = await exited;
      await left();
      // What has left the sandbox may hold these for ever, and must not keep a hold from ending.
      await abortable(closed, signal);
      return code;
    } finally {
      signal.removeEventListener('abort', kill);
      for (const pipe of [stdout, stderr]) pipe.destroy();
    }
  };
  const resize: RunningShell['resize'] = ({ columns, rows }) => {
    if (hasTerminal && !size.destroyed) size.write(`${columns} ${rows}\n`);
  };
  const over = ended();
  // Not everyone waits for it.
  over.catch(() => {});
  return { stdin, output: both(stdout, stderr), resize, ended: over };
}

/** Pieces of both streams as they come. A reader that stalls lets the program wait. */
async function* both(stdout: Readable, stderr: Readable): RunningShell['output'] {
  const streams = (['stdout', 'stderr'] as const).map((stream) => ({ stream, pipe: stream === 'stdout' ? stdout : stderr }));
  const readers = streams.map(({ stream, pipe }) => ({ stream, pieces: pipe[Symbol.asyncIterator]() }));
  const next = ({ stream, pieces }: (typeof readers)[number]) =>
    pieces.next().then(
      ({ done, value }) => ({ stream, bytes: done === true ? null : (value as Uint8Array) }),
      () => ({ stream, bytes: null }),
    );
  const waiting = new Map(readers.map((reader) => [reader.stream, next(reader)]));
  while (waiting.size > 0) {
    const { stream, bytes } = await Promise.race(waiting.values());
    const reader = readers.find((one) => one.stream === stream);
    if (bytes === null || reader === undefined) waiting.delete(stream);
    else {
      waiting.set(stream, next(reader));
      yield { stream, bytes };
    }
  }
}
