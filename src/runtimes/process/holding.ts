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
import type { Clock } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import type { Holding, RunningShell, ShellSpec } from '../../ports/runtime.ts';
import { markVariable } from '../../system/process-identity.ts';
import { placedOf } from '../mounts.ts';
import { makeCgroups } from './cgroup.ts';
import type { Intent } from './folder.ts';
import type { ProcessHost } from './host.ts';
import { childOf, entering, networkCommand, type Uplink } from './network.ts';
import { checkFolders, checkRecipe, confined, grantDevices } from './prepare.ts';
import { isInstalled, path } from './programs.ts';
import { type Inside, verifyInside } from './release.ts';
import { emptySandbox } from './remove.ts';
import { keepUid } from './uids.ts';

/** `known`: what is recorded of an agent; null if it has no sandbox. */
export function createHolding(
  host: ProcessHost,
  known: (agent: AgentId) => Intent | null,
  remove: (agent: AgentId) => Promise<void>,
): Holding {
  /** Number of shells by agent. */
  const open = new Map<AgentId, number>();

  const leave = async (about: Intent, own: readonly string[]): Promise<void> => {
    const { agent } = about;
    for (const name of own) await rm(join(host.at.agents, agent, name), { force: true });
    const left = (open.get(agent) ?? 1) - 1;
    if (left > 0) open.set(agent, left);
    else open.delete(agent);
    // What a shell has started may go on without it.
    if (left <= 0 && known(agent) !== null) await emptySandbox(host, about);
  };

  return {
    async hold(agent) {
      const about = known(agent);
      if (about === null) return false;
      await emptySandbox(host, about);
      if (about.uid !== null) await keepUid(about.uid, join(host.at.agents, agent));
      return true;
    },

    async shell(agent, shell, signal) {
      const about = known(agent);
      if (about === null) throw new OnejobError('E_SANDBOX_LOST', `Agent ${agent} no longer has a sandbox on this host.`);
      if (about.mode !== host.mode) throw otherMode(agent, about.mode);
      checkRecipe(host, shell.spec.recipe);
      await checkFolders(shell.spec.recipe);
      const placed = host.mode === 'bubblewrap' ? placedOf(shell.spec) : [];
      if (shell.terminal !== null && !(await isInstalled('script'))) throw noTerminal();
      const own = randomBytes(4).toString('hex');
      const [args, status] = [`args.${own}`, `status.${own}`];
      const pipes = [`out.${own}`, `err.${own}`] as const;
      open.set(agent, (open.get(agent) ?? 0) + 1);
      const over: (() => void)[] = [];
      let opened: Opened;
      const left = () => {
        for (const end of over) end();
        return leave(about, [args, status, ...pipes]);
      };
      try {
        // Its processes have the mark and the groups of the held sandbox, by which they are found.
        const spec = { ...shell.spec, agent };
        const grant = grantDevices(host, spec);
        const { paths } = makeCgroups(host.cgroups, agent, spec.recipe);
        const { uid, files } = about;
        const folder = join(host.at.agents, agent);
        const how = await confined(host, spec, { uid, files, folder, grant, args, status }, program(shell, placed.length > 0));
        const { uplink } = how;
        const network = uplink === null ? null : await startNetwork(folder, host, { agent, uplink }, signal);
        over.push(() => network?.end());
        signal.throwIfAborted();
        const child = start(folder, agent, host.inherited, [
          'umask 022',
          ...(shell.terminal === null ? namedOutput(pipes, uid) : []),
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
        opened = { child, shell: running(child, shell.terminal !== null, signal, left) };
      } catch (error) {
        await left();
        throw error;
      }
      const inside = { path: join(host.at.agents, agent), agent, name: shell.spec.name, status, placed };
      await letGo(host.clock, opened, inside, signal);
      return opened.shell;
    },

    release: remove,
    // All of a shell is in the folder of its agent.
    sweep: async () => {},
  };
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

interface Opened {
  readonly child: ChildProcess;
  readonly shell: RunningShell;
}

/** Lets a shell run once its folders are those that were checked. @throws OnejobError E_MOUNT_CHANGED, E_GATE_ENDED; it has ended then */
async function letGo(clock: Clock, { child, shell }: Opened, inside: Inside, signal: AbortSignal): Promise<void> {
  if (inside.placed.length === 0) return;
  try {
    await verifyInside(clock, inside, () => child.exitCode !== null || child.signalCode !== null, signal);
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
  // Node would pass on the descriptors that the manager inherited.
  const more = Array.from({ length: Math.max(3, ...inherited) - 3 }, () => 'ignore' as const);
  return spawn('/bin/sh', ['-c', script.join('\n')], {
    cwd: folder,
    stdio: ['pipe', 'pipe', 'pipe', 'pipe', ...more],
    env: { PATH: path, [markVariable]: agent },
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
  let said = 'it ended';
  for await (const line of createInterface({ input: stdout })) {
    const holder = line === 'ready' && child.pid !== undefined ? childOf(child.pid) : null;
    if (holder !== null) return { enter: entering(root, holder), end: stop };
    said = line;
  }
  const message = `Cannot open a shell: failed to make its network (${said}).`;
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
