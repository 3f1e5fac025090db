/** What the programs have in common that start a stand-in for a person. */
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { networkInterfaces, tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { type ParseArgsOptionsConfig, parseArgs } from 'node:util';

/** A stand-in that is up, as a person plays it. */
export interface Played {
  /** What it says at first. */
  readonly greeting: string;
  obey(line: string): Promise<string>;
  /** Queues so many jobs once the first agent is there. */
  queueJobs(count: number): void;
}

export interface Arguments {
  /** Address to listen on. */
  readonly host: string;
  readonly port: number;
  /** A folder for its config, which another config includes; null: one of its own. */
  readonly into: string | null;
  /** What else was said, by name. */
  readonly more: Readonly<Record<string, unknown>>;
}

/**
 * Runs `play` and obeys what is typed until `quit`, or says the usage. Containers must reach a stand-in, so it listens on an address
 * that is not 127.0.0.1, if there is one.
 */
export async function playByHand(
  { usage, port, options = {} }: { readonly usage: string; readonly port: number; readonly options?: ParseArgsOptionsConfig },
  play: (said: Arguments, stack: AsyncDisposableStack) => Promise<Played>,
): Promise<void> {
  const known = { host: { type: 'string' }, port: { type: 'string' }, jobs: { type: 'string' }, into: { type: 'string' } } as const;
  const values = orSay(() => {
    const read = parseArgs({ options: { ...options, ...known, help: { type: 'boolean' } } }).values;
    if ('runtime' in options) poolPlace(read);
    return read;
  });
  if (values === null) return;
  if (values.help === true) return console.log(usage);
  await using stack = new AsyncDisposableStack();
  const into = values.into === undefined ? null : resolve(String(values.into));
  const said = { host: String(values.host ?? ownAddress()), port: Number(values.port ?? port), into, more: values };
  const played = await play(said, stack).catch((error: unknown) => {
    if (!(error instanceof Error && 'code' in error && String(error.code).startsWith('EADDR'))) throw error;
    const at = 'port' in error ? ` port ${String(error.port)}` : '';
    console.error(`Cannot listen on ${said.host}${at} (${error.code}): give another one with --port or --host.`);
    process.exitCode = 1;
    return null;
  });
  if (played === null) return;
  const { greeting, obey, queueJobs } = played;
  console.log(greeting);
  const jobs = Number(values.jobs ?? 0);
  if (jobs > 0) queueJobs(jobs);
  await conversation(obey);
}

/** An option of a stand-in whose pool is made of containers, unless somebody says otherwise. */
export const runtimeOption = { runtime: { type: 'string' } } as const;

/** What the usage says of it. */
export const runtimeUsage = '--runtime process gives its pool sandboxed processes instead of containers.';

/** The keys of such a pool that say where its jobs run. @throws TypeError for a runtime that it cannot write a pool for */
export function poolPlace({ runtime = 'docker' }: Arguments['more']): string {
  if (runtime === 'docker') return 'image: "debian:stable-slim", memory: 1GiB';
  // A process can reach this host, so jobs of strangers must not be one.
  if (runtime === 'process') return 'runtime: process, trust: { forks: refuse, others: refuse }';
  throw new TypeError(`There is no pool for --runtime ${String(runtime)}: write docker or process.`);
}

/** What `read` returns; null: the command line is wrong, and the person was told. */
function orSay<T>(read: () => T): T | null {
  try {
    return read();
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    console.error(error.message);
    process.exitCode = 2;
    return null;
  }
}

/** Says each event that is worth a line. */
export function tellEvents<Event>(
  { on }: { on(listener: (event: Event) => void): unknown },
  told: (event: Event) => string | null,
): void {
  on((event) => {
    const line = told(event);
    if (line !== null) console.log(line);
  });
}

/**
 * Writes a config with its secrets to try it with: into a folder that is given, as `NAME.yml` for another config to include, else with a
 * state directory into a folder of its own, so that a onejob that leads this host continues beside it. `files`: their texts by name.
 */
export function trialConfig(
  name: string,
  into: string | null,
  files: Readonly<Record<string, string>>,
  configIn: (dir: string) => string,
): Disposable & { readonly dir: string; readonly way: string } {
  const folder = into === null ? trialFolder(name, 'state') : null;
  const dir = into ?? folder?.dir ?? '';
  const config = join(dir, into === null ? 'try.yml' : `${name}.yml`);
  const text = folder === null ? configIn(dir) : `state_dir: "${folder.state}"\n${configIn(dir)}`;
  mkdirSync(dir, { recursive: true });
  for (const [file, secret] of Object.entries(files)) writeFileSync(join(dir, file), secret, { mode: 0o600 });
  writeFileSync(config, text);
  const own = `In another terminal, as it stands:
  unset ONEJOB_STATE_DIR ONEJOB_SOCKET
  export ONEJOB_CONFIG=${config}
  bin/onejob up`;
  const shown = text.trimEnd().replaceAll('\n', '\n  ');
  return {
    dir,
    way:
      into === null
        ? `${own}\n\nThe config, with a state directory of its own:\n  ${shown}`
        : `Wrote ${config}, to be included by another config:\n  ${shown}`,
    [Symbol.dispose]: () => folder?.[Symbol.dispose](),
  };
}

/** A folder to try it with, so that a onejob that leads this host continues beside it. `state`: its state directory, in it. */
export function trialFolder(name: string, state = ''): Disposable & { readonly dir: string; readonly state: string } {
  const dir = mkdtempSync(join(tmpdir(), `onejob-${name}-`));
  return {
    dir,
    state: join(dir, state),
    [Symbol.dispose]() {
      // Anyone who leads it still needs it to end its agents.
      if (existsSync(join(dir, state, 'onejob.sock'))) console.log(`A onejob is still up; remove ${dir} once it is down.`);
      else rmSync(dir, { recursive: true, force: true });
    },
  };
}

/** Has each line of the input obeyed, until `quit`, which waits for what was typed before, or a signal; the end of the input changes nothing, so that it can run in the background. */
function conversation(obey: (line: string) => Promise<string>): Promise<unknown> {
  return new Promise<unknown>((resolve) => {
    const lines = createInterface({ input: process.stdin });
    let before: Promise<unknown> = Promise.resolve();
    const stay = setInterval(() => undefined, 60_000);
    const end = (): void => {
      clearInterval(stay);
      lines.close();
      process.stdin.destroy();
      // An "up" that is under way would open the door again behind anyone who closes it.
      void before.then(resolve);
    };
    process.once('SIGINT', end);
    process.once('SIGTERM', end);
    // Its terminal was closed.
    process.once('SIGHUP', end);
    lines.on('line', (line) => {
      if (line.trim() === 'quit') return end();
      // One after the other: "down" and "up" take a moment.
      before = before
        .then(() => obey(line))
        .then(
          (answer) => answer !== '' && console.log(answer),
          (error: unknown) => console.log(error instanceof Error ? error.message : error),
        );
    });
  });
}

/** The address of a bridge for containers, else the first that is reachable from one. */
function ownAddress(): string {
  const all = Object.entries(networkInterfaces()).flatMap(([name, addresses]) =>
    (addresses ?? []).map((each) => ({ name, ...each })),
  );
  const outward = all.filter((each) => each.family === 'IPv4' && !each.internal);
  return (outward.find(({ name }) => name.startsWith('docker')) ?? outward[0])?.address ?? '127.0.0.1';
}
