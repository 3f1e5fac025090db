/**
 * Reads the config: defaults < file < environment < flags. Finds all problems before it reports any. Without a file it loads
 * neither the YAML parser nor the schema, so that `onejob run` starts quickly.
 */
import { availableParallelism, hostname, totalmem } from 'node:os';
import { join } from 'node:path';
import { OnejobError } from '../base/errors.ts';
import { formatProblem, inOrder, type Problem, place } from '../schema/problem.ts';
import { shortHost } from '../schema/template.ts';
import { pathProblem } from '../schema/volumes.ts';
import { systemClock } from '../system/system-clock.ts';
import { checkAcross } from './check.ts';
import type { HostFacts, Writing } from './checking.ts';
import type { Config, Written } from './config.ts';
import type { Environment } from './environment.ts';
import type { HostLook } from './host-look.ts';
import { checkCommand, choosePaths, type Flags, findConfig, type Given, type Paths, socketProblem } from './paths.ts';
import { nothingWritten, resolveConfig } from './resolve.ts';
import type { Combined } from './source.ts';
import type { LazyTypes, Types } from './types.ts';

export interface LoadOptions {
  readonly flags?: Flags;
  readonly env: Environment;
  /** What services, runtimes and clouds it may name. */
  readonly types: Types | LazyTypes;
  /** Base of relative paths in flags and environment; default: the working directory. */
  readonly cwd?: string;
  readonly host?: HostFacts;
  /** Wall clock, ms since the epoch, for the dates of secrets. */
  readonly now?: number;
  /** null: neither secrets nor this host are checked, as for a client, or for the config of another host. */
  readonly look: HostLook | null;
  /** Whether the secret of a key will be used: no other one is checked. Default: all are. */
  readonly isUsed?: (key: string, config: Config) => boolean;
  /** Whether the host has GPUs that jobs could use, for a config that names no pools. Default: as this host's buses show. */
  readonly gpus?: boolean;
  /** Whether the daemon ends with its last job. Default false. */
  readonly temporary?: boolean;
  /** Whether a daemon starts with it: what may pass, such as a missing certificate, is a warning then. Default false. */
  readonly starting?: boolean;
  /** Used instead of a file. */
  readonly instead?: Instead | undefined;
}

function readHost(): HostFacts {
  return Object.freeze({ name: shortHost(hostname()), cpus: availableParallelism(), memory: totalmem() });
}

/** A config from a command instead of a file. */
export interface Instead {
  /** Its origin for people, such as `the command line`. */
  readonly name: string;
  readonly written: Written;
}

/** A config with its problems. */
export interface Checked {
  readonly paths: Paths;
  readonly types: Types;
  /** Complete even if there are errors, with defaults instead of what is wrong: for showing, not for running. */
  readonly config: Config;
  readonly written: Written;
  readonly writing: Writing;
  readonly files: Combined['files'];
  readonly errors: readonly Problem[];
  readonly warnings: readonly Problem[];
}
export type Loaded = Pick<Checked, 'config' | 'files' | 'warnings'>;

/** Finds all problems, and throws for none. */
export async function checkConfig(options: LoadOptions): Promise<Checked> {
  const { flags = {}, env, types, cwd = process.cwd(), instead } = options;
  const found = instead === undefined ? findConfig(flags, env, cwd) : { path: instead.name, from: place(instead.name) };
  const combined = found === null || instead !== undefined ? null : await readFiles(found);
  if (!('few' in types)) return check(options, found, combined, types);
  if (namesTypes(combined?.value ?? instead?.written ?? {})) return check(options, found, combined, await types.all());
  const checked = await check(options, found, combined, types.few);
  // What is said of a mistake may name any service.
  const isFine = checked.errors.length === 0 && checked.warnings.length === 0;
  return isFine ? checked : check(options, found, combined, await types.all());
}

function namesTypes({
  services,
  runtimes,
  clouds,
  hosts,
}: Partial<Record<'services' | 'runtimes' | 'clouds' | 'hosts', unknown>>): boolean {
  return [services, runtimes, clouds, hosts].some((one) => one !== undefined && !(one instanceof Map && one.size === 0));
}

async function check(options: LoadOptions, found: Given | null, combined: Combined | null, types: Types): Promise<Checked> {
  const { flags = {}, env, look, cwd = process.cwd(), host = readHost(), now = systemClock.wall(), instead } = options;
  const read = found === null || combined === null ? unread(instead) : await interpretFiles(found, combined, types);
  const { written, problems, writing } = read;
  const given = (key: 'state_dir' | 'socket'): Given | null => {
    const path = written.top[key];
    return path === undefined ? null : { path, from: writing.locate([key]) };
  };
  const paths = { config: found, ...choosePaths(flags, env, cwd, { stateDir: given('state_dir'), socket: given('socket') }) };
  const hasGpus = async () => (await import('../gpu/pci.ts')).hasComputeCards(join(env.hostRoot ?? '/', 'sys'));
  const gpus = written.pools === null && instead === undefined && (options.gpus ?? (await hasGpus()));
  const resolved = resolveConfig(written, paths, host, types, { gpus, temporary: options.temporary === true });
  // What is checked is what agents get, so nobody may put a link there in between.
  const config = look === null ? resolved : Object.freeze({ ...resolved, places: await look.places(resolved) });
  const all: Problem[] = [
    ...problems,
    ...checkAcross(config, written, writing, types, look === null ? null : host, options.starting),
  ];
  const socket = socketProblem(paths.socket);
  if (socket !== null) all.push(socket);
  if (look !== null) {
    const used = config.secrets.filter(([key]) => options.isUsed?.(key, config) ?? true);
    all.push(...(await look.secrets({ ...config, secrets: used }, writing, now)));
  }
  const ordered = inOrder(all.map((problem) => withoutText(problem, writing.foreign)));
  return {
    paths,
    types,
    config,
    written,
    writing,
    files: writing.files,
    errors: ordered.filter((problem) => problem.level === 'error'),
    warnings: ordered.filter((problem) => problem.level === 'warning'),
  };
}

/**
 * The config to run with.
 * @throws OnejobError E_CONFIG with every problem in its message.
 */
export async function loadConfig(options: LoadOptions): Promise<Loaded> {
  const { config, files, errors, warnings, paths } = await checkConfig(options);
  if (errors.length > 0) throw configError(errors, paths.config);
  return { config, files, warnings };
}

/**
 * Only the paths of state and socket, for clients: no mistake in the file must keep a client from a running daemon, unless only the
 * file says where that is.
 * @throws OnejobError E_CONFIG when the file cannot be read, or cannot be parsed and may name a path, or the socket's path is too long.
 */
export async function loadPaths(options: Pick<LoadOptions, 'flags' | 'env' | 'cwd'>): Promise<Paths> {
  const { flags = {}, env, cwd = process.cwd() } = options;
  const config = findConfig(flags, env, cwd);
  const [stateDir, socket] = [flags.stateDir ?? env.stateDir, flags.socket ?? env.socket];
  const known = stateDir !== null && socket !== null;
  const nothing = { stateDir: null, socket: null };
  const file = config === null || known ? nothing : await writtenPaths(config, stateDir !== null || socket !== null);
  const paths = { config, ...choosePaths(flags, env, cwd, file) };
  const problem = socketProblem(paths.socket);
  if (problem !== null) throw configError([problem], config);
  return paths;
}

/** `isNamed`: whether a flag or the environment says where the daemon is, so that a syntax error does not matter. */
async function writtenPaths(found: Given, isNamed: boolean): Promise<{ stateDir: Given | null; socket: Given | null }> {
  const combined = await readFiles(found);
  const isUsual = found.from.source === 'default';
  const fatal = combined.problems.filter((problem) => problem.key === '' && !(isUsual && problem.message === notReadable));
  const given = (key: string): Given | null => {
    const path = combined.value[key];
    return typeof path === 'string' && pathProblem(path) === null ? { path, from: combined.locate([key]) } : null;
  };
  const paths = { stateDir: given('state_dir'), socket: given('socket') };
  const isHidden = !isNamed && paths.stateDir === null && combined.keyless.some((text) => mayNamePath.test(text));
  if (fatal.length > 0 && (isHidden || fatal.some(({ line }) => line === null))) {
    const shown = fatal.map((problem) => withoutText(problem, combined.foreign));
    throw configError(shown, found, isHidden ? howToFindAnyway : undefined);
  }
  return paths;
}

/** What a file that cannot be parsed may say. At the usual place, its daemon is not, but another one may be. */
const mayNamePath = /^[^#\n]*\b(state_dir|socket|include)\b/m;
const howToFindAnyway = 'Fix it, or name the place of a running daemon, which only this file does, with --state-dir DIR.';

async function readFiles(found: Given): Promise<Combined> {
  const { readWithIncludes } = await import('./source.ts');
  const combined = await readWithIncludes(found.path);
  // For a missing file, say what named it.
  const named = found.from.source === 'default' ? '' : ` (named by ${found.from.source})`;
  const problems = combined.problems.map((problem) =>
    problem.source === found.path && /^(does not exist|is not a file|cannot be read)/.test(problem.message)
      ? { ...problem, message: problem.message + named }
      : problem,
  );
  return { ...combined, problems };
}

async function interpretFiles(found: Given, combined: Combined, types: Types) {
  const { interpret } = await import('./interpret.ts');
  const { written, problems } = interpret(combined, types);
  if (combined.empty)
    problems.push({ ...place(found.path), level: 'warning', key: '', message: 'is empty; onejob runs as if there were no file' });
  return { written, problems: [...combined.problems, ...problems], writing: combined };
}

/** Message of `readSource` about a config of the host that this user cannot read, which is as none. */
const notReadable = 'cannot be read by this user';

/** Naming a foreign file in a config that another user reads must not reveal its keys and values. */
function withoutText(problem: Problem, foreign: ReadonlySet<string>): Problem {
  if (problem.line === null || !foreign.has(problem.source)) return problem;
  const message =
    'is invalid here; its text is not shown, because this file belongs to a different user than the file that includes it';
  return { ...problem, key: '', message };
}

function unread(instead: Instead | undefined) {
  const where = place(instead?.name ?? 'default');
  const writing = { has: () => false, locate: () => where, files: [], foreign: new Set<string>() };
  return { written: instead?.written ?? nothingWritten, problems: [], writing };
}

/** All that is wrong as one error, E_CONFIG. `found`: the file. `hint`: what to do, if that is not only to fix it. */
export function configError(errors: readonly Problem[], found: Given | null, hint?: string): OnejobError {
  const count = errors.length === 1 ? 'a problem' : `${errors.length} problems`;
  const list = errors.map((problem) => `  ${formatProblem({ ...problem, level: 'error' })}`).join('\n');
  const usual = errors.every(({ line }) => line === null)
    ? 'Fix the problems that are listed.'
    : `Fix the problems that are listed, then type "${checkCommand(found)}".`;
  return new OnejobError('E_CONFIG', `The config has ${count}:\n${list}`, { hint: hint ?? usual });
}
