/** The flags of `onejob run` as a request to the daemon. */
import { userInfo } from 'node:os';
import { resolve } from 'node:path';
import type { Client } from '../api/client.ts';
import { attempt } from '../base/errors.ts';
import { parseDuration, parseSize } from '../base/units.ts';
import { artifactProblem, artifactsProblem } from '../ci/own-queue/globs.ts';
import { callersOwn } from '../config/environment.ts';
import { arrayLimit, type JobRequest, labelProblem, longestName } from '../contract/job.ts';
import { parseVolume } from '../schema/volumes.ts';
import type { CliContext } from './context.ts';
import { notUtf8, wrongUsage } from './exit.ts';

export interface RunFlags {
  readonly pool?: string;
  readonly name?: string;
  readonly image?: string;
  readonly memory?: string;
  readonly cpus?: number;
  readonly devices?: number;
  readonly env?: readonly string[];
  readonly volume?: readonly string[];
  readonly priority?: number;
  readonly timeout?: string;
  readonly retries?: number;
  readonly artifact?: readonly string[];
  /** A folder; false for `--no-workspace`; true without either, by commander. */
  readonly workspace?: string | boolean;
  readonly detach?: boolean;
  readonly array?: string;
  readonly needs?: readonly string[];
}

/** Bytes; runtimes refuse less. */
const leastMemory = 6 * 2 ** 20;

/** @throws OnejobError E_USAGE */
export async function runOptions(context: CliContext, command: readonly string[], flags: RunFlags): Promise<JobRunOptions> {
  const workspace = flags.workspace === false ? null : typeof flags.workspace === 'string' ? flags.workspace : '.';
  const { pool, name, image, cpus, devices, priority, retries } = flags;
  return {
    workspace,
    detach: flags.detach === true,
    array: flags.array === undefined ? null : indices(flags.array),
    needs: flags.needs ?? [],
    request: {
      command: [...command],
      pool,
      name: name === undefined ? undefined : jobName(name),
      image,
      cpus,
      devices,
      priority,
      retries,
      // null for a user without a name, as in many containers.
      user: attempt(() => userInfo().username.slice(0, 64)),
      memory: flags.memory === undefined ? null : size(flags.memory),
      env: Object.fromEntries((flags.env ?? []).map((each) => variable(each, context))),
      volumes: (flags.volume ?? []).map((each) => volume(each, context.cwd)),
      timeout: flags.timeout === undefined ? null : duration(flags.timeout),
      artifacts: artifactPatterns(flags.artifact ?? []),
    },
  };
}

function variable(text: string, { variables: own, isGiven }: CliContext): [string, string] {
  const [, name, value] = /^([A-Za-z_][A-Za-z0-9_]*)(?:=(.*))?$/s.exec(text) ?? [];
  if (name === undefined)
    throw usage(`--env ${text}: it does not begin with a valid variable name.`, 'Write NAME=VALUE, or NAME to pass on your own.');
  const found = value ?? callersOwn(own, name);
  // A value that was typed is checked as an argument.
  if (value === undefined && found !== undefined && !isGiven(`${name}=${found}`, 'environ') && own[name] !== undefined)
    throw notUtf8(`the variable ${name}`);
  if (found !== undefined) return [name, found];
  const message = `--env ${name}: it is not set in this environment, so there is nothing to pass on.`;
  throw usage(message, `Set it, or write ${name}=VALUE.`);
}

function jobName(text: string): string {
  // Of "$(git log -1 --format=%B)" the shell leaves one line, or several.
  const name = text.trim();
  const why = labelProblem(name, longestName);
  if (why === null) return name;
  const firstLine = 'Give its first line, such as "$(git log -1 --format=%s)".';
  throw usage(`--name: ${why}.`, name === '' ? 'Leave --name out, or give it a text.' : firstLine);
}

function volume(text: string, cwd: string): JobRequest['volumes'][number] {
  const [host = '', ...rest] = text.split(':');
  // A path typed at a prompt may be relative.
  const absolute = host.startsWith('.') ? [resolve(cwd, host), ...rest].join(':') : text;
  const parsed = parseVolume(absolute);
  if (!parsed.ok) throw usage(`--volume ${parsed.why}.`);
  return { ...parsed.value };
}

function size(text: string): number {
  const parsed = parseSize(text);
  if (!parsed.ok) throw usage(`--memory ${parsed.why}.`);
  if (parsed.value < leastMemory) throw usage('--memory must be at least 6MiB.');
  return parsed.value;
}

/** @throws OnejobError E_USAGE */
export function artifactPatterns(patterns: readonly string[]): string[] {
  const why = artifactsProblem(patterns);
  if (why === null) return patterns.map(artifact);
  throw usage(`--artifact with ${why}.`, 'Name a folder, which means everything in it, or combine several patterns into one.');
}

function artifact(pattern: string): string {
  const why = artifactProblem(pattern);
  if (why === null) return pattern;
  throw usage(`--artifact ${pattern}: ${why}.`, 'Give a path or pattern relative to the workspace, such as "dist/**".');
}

function duration(text: string): number {
  const parsed = parseDuration(text);
  if (!parsed.ok) throw usage(`--timeout ${parsed.why}.`);
  if (parsed.value <= 0) throw usage('--timeout must be longer than 0.');
  return parsed.value;
}

/** `0-9`, `1,3,7` or both; `0-90:10` is every tenth. */
function indices(text: string): number[] {
  const found = new Set<number>();
  for (const part of text.split(',')) {
    const [, from, to = from, step = '1'] = /^(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?$/.exec(part.trim()) ?? [];
    const [first, last, by] = [Number(from), Number(to), Number(step)];
    if (from === undefined || first > last || by === 0)
      throw usage(`Invalid --array ${text}.`, 'Write indices such as 0-99, 1,3,7 or 0-90:10 for every tenth.');
    for (let at = first; at <= last && found.size <= arrayLimit; at += by) found.add(at);
  }
  if (found.size > arrayLimit) throw usage(`Invalid --array ${text}: an array has at most ${arrayLimit} jobs.`);
  return [...found];
}

function usage(message: string, hint = 'See "onejob run --help".') {
  return wrongUsage(message, hint);
}

export interface JobRunOptions {
  readonly request: Omit<Parameters<Client['submit']>[0], 'id' | 'workspace'>;
  /** Folder to send; null for none. */
  readonly workspace: string | null;
  readonly detach: boolean;
  /** Indices of the jobs of an array; null: one job. */
  readonly array: readonly number[] | null;
  /** Ids of jobs and arrays that must have passed before, or the first letters of a job's id. */
  readonly needs: readonly string[];
  /** ms to wait for a lost daemon, for tests; default 10 min. */
  readonly patience?: number;
}
