/**
 * The real onejob in a temporary home, for end-to-end tests: starts `bin/onejob`, waits for its socket, kills it, looks
 * at it through its API. Closing a home ends everything it started and takes the census: a test that leaves something
 * behind fails, and what it left is then removed.
 *
 *     await using home = await onejob({ config: 'pools: …' });
 *     const daemon = await home.up();
 *     const job = await home.run('--', 'true').ended;
 */
import { chownSync, mkdirSync, mkdtempSync, rmSync, watch, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { type Client, createClient } from '../../src/api/client.ts';
import { type Census, census, cleanUp, renderCensus } from './census.ts';
import { processesOf } from './census-processes.ts';
import { ownerOf } from './census-state.ts';
import { type Child, isAlive, startChild, untilGone } from './child.ts';
import { machineSocket } from './engine-http.ts';
import { withoutKept } from './kept-networks.ts';

const ownProgram = join(import.meta.dirname, '..', '..', 'bin', 'onejob');

export interface HomeOptions {
  /** Text of the config file; none: there is no file. */
  readonly config?: string;
  readonly env?: Readonly<Record<string, string>>;
  /** Socket of the Engine the census looks at; default the machine's. The daemon is told by `env.DOCKER_HOST`. */
  readonly engine?: string;
  /** Another onejob than this clone's, such as an installed one. */
  readonly program?: string;
  /** Command and arguments that start what is written behind them, such as `nsenter …`; it must become that process. */
  readonly through?: readonly string[];
  /** Who runs it, and whose the home is; default the user of the tests, who must be root otherwise. */
  readonly user?: { readonly uid: number; readonly gid: number };
}

export interface Daemon {
  readonly child: Child;
  readonly pid: number;
  /** SIGTERM, and waits for the end. */
  stop(): ReturnType<Child['kill']>;
  /** SIGKILL, and waits for the end. */
  kill(): ReturnType<Child['kill']>;
  /** SIGSTOP and SIGCONT. */
  freeze(): void;
  thaw(): void;
}

export interface Home extends AsyncDisposable {
  readonly dir: string;
  readonly stateDir: string;
  readonly socket: string;
  readonly env: NodeJS.ProcessEnv;
  /** An empty folder, the commands' current one unless they are given another. */
  readonly cwd: string;
  readonly api: Client;
  /** Starts `onejob up` and waits until it answers. @throws Error with its output when it ends instead. */
  up(...args: string[]): Promise<Daemon>;
  /** Starts `onejob run …`. */
  run(...args: string[]): Child;
  /** Starts any command, in `cwd`. */
  cli(args: readonly string[], options?: { readonly cwd?: string; readonly env?: Readonly<Record<string, string>> }): Child;
  /** Writes another config file over the first. */
  configure(text: string): void;
  /** What is there now of this home's. */
  census(): Promise<Census>;
  /** Ends everything, and throws the census as an error when it does not balance. Also done at the end of `await using`. */
  close(): Promise<void>;
}

export async function onejob(options: HomeOptions = {}): Promise<Home> {
  const { user } = options;
  // Short: sockets live below it.
  const dir = mkdtempSync(join(tmpdir(), 'oj-'));
  const paths = { stateDir: join(dir, 'state'), socket: join(dir, 's.sock'), home: join(dir, 'home'), cwd: join(dir, 'cwd') };
  mkdirSync(paths.home);
  mkdirSync(paths.cwd);
  const giveAway = (path: string): void => {
    if (user !== undefined) chownSync(path, user.uid, user.gid);
  };
  for (const path of [dir, paths.home, paths.cwd]) giveAway(path);
  const configFile = join(dir, 'config.yml');
  const configure = (text: string): void => {
    writeFileSync(configFile, text, { mode: 0o600 });
    giveAway(configFile);
  };
  if (options.config !== undefined) configure(options.config);
  const env: NodeJS.ProcessEnv = {
    PATH: process.env.PATH,
    LANG: 'C.UTF-8',
    HOME: paths.home,
    XDG_CONFIG_HOME: join(paths.home, '.config'),
    ONEJOB_STATE_DIR: paths.stateDir,
    ONEJOB_SOCKET: paths.socket,
    ...(options.config === undefined ? {} : { ONEJOB_CONFIG: configFile }),
    ...options.env,
  };
  // It trusts no socket of another user.
  const dial = { dial: () => connect(paths.socket) };
  const api = createClient({ socket: paths.socket, version: 'test', ...(user !== undefined && dial) });
  const children = new Set<Child>();
  const daemons = new Set<Child>();
  let closing: Promise<void> | null = null;

  const cli: Home['cli'] = (args, more = {}) => {
    if (closing !== null) throw new Error('this home is closed');
    const { program = ownProgram, through = [] } = options;
    const as = user === undefined ? [] : ['setpriv', `--reuid=${user.uid}`, `--regid=${user.gid}`, '--init-groups'];
    const [command = program, ...words] = [...through, ...as, program, ...args];
    const child = startChild(command, words, { cwd: more.cwd ?? paths.cwd, env: { ...env, ...more.env } });
    children.add(child);
    return child;
  };

  async function up(...args: string[]): Promise<Daemon> {
    const child = cli(['up', ...args]);
    daemons.add(child);
    await untilAnswering(child, paths.socket, api);
    return {
      child,
      pid: child.pid,
      stop() {
        child.signal('SIGTERM');
        return child.ended;
      },
      kill: () => child.kill(),
      freeze: () => child.signal('SIGSTOP'),
      thaw: () => child.signal('SIGCONT'),
    };
  }

  const engine = options.engine ?? null;
  const count = async (): Promise<Census> => {
    const found = await census({ stateDir: paths.stateDir, socket: paths.socket, owner: ownerOf(paths.stateDir), engine });
    return withoutKept(found, engine ?? machineSocket);
  };

  function close(): Promise<void> {
    closing ??= end();
    return closing;
  }

  async function end(): Promise<void> {
    for (const child of children) if (!daemons.has(child) && child.running) await child.kill();
    for (const child of daemons) await endDaemon(child);
    await endTemporary(paths.stateDir);
    const result = await count();
    if (result.left.length > 0) await cleanUp(result, engine);
    rmSync(dir, { recursive: true, force: true, maxRetries: 10, retryDelay: 50 });
    if (result.left.length > 0) throw new Error(`the census does not balance:\n${renderCensus(result)}`);
  }

  await closeWithTest(close);
  return {
    dir,
    ...paths,
    env,
    api,
    up,
    run: (...args) => cli(['run', ...args]),
    cli,
    configure,
    census: count,
    close,
    [Symbol.asyncDispose]: close,
  };
}

/** A test that runs into its time limit never comes to the end of its `await using`. */
async function closeWithTest(close: () => Promise<void>): Promise<void> {
  if (process.env.VITEST === undefined) return;
  const { onTestFinished } = await import('vitest');
  try {
    onTestFinished(close, 60_000);
  } catch {
    // Not inside a test but in a hook, whose other half closes it.
  }
}

/** Resolves once the daemon's socket appears and answers. */
async function untilAnswering(child: Child, socket: string, api: Client): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  const look = (): void =>
    void api.status().then(
      () => resolve(),
      // Not yet; a socket that appears is another event.
      () => {},
    );
  const watcher = watch(dirname(socket), (_event, name) => {
    if (name === basename(socket)) look();
  });
  void child.ended.then((end) => reject(new Error(`"onejob up" ended (${end.code ?? end.signal}):\n${end.stdout}${end.stderr}`)));
  look();
  try {
    await promise;
  } finally {
    watcher.close();
  }
}

/** Asks twice, since a second signal hurries it; then, before a hook's patience ends, does not ask any more. */
async function endDaemon(child: Child): Promise<void> {
  if (!child.running) return;
  child.signal('SIGCONT');
  child.signal('SIGTERM');
  const slow = setTimeout(() => child.signal('SIGTERM'), 3_000);
  const stuck = setTimeout(() => child.signal('SIGKILL'), 45_000);
  await child.ended;
  clearTimeout(slow);
  clearTimeout(stuck);
}

/** Managers that a `run` has started detached: they end by themselves, so a test gives them the time for it. */
async function endTemporary(stateDir: string): Promise<void> {
  for (const one of processesOf({ stateDir, owner: null })) {
    if (!/bin\/node|\/main\.[tj]s/.test(one.command)) continue;
    await untilGone(one.pid, 5_000).catch(async () => {
      // It may have ended since the last look.
      if (isAlive(one.pid)) process.kill(one.pid, 'SIGTERM');
      await untilGone(one.pid, 5_000).catch(async () => {
        // One that still waits for a job is hurried by a second signal.
        if (isAlive(one.pid)) process.kill(one.pid, 'SIGTERM');
        await untilGone(one.pid, 20_000);
      });
    });
  }
}
