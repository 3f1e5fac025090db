/**
 * What of the source runs: which files a daemon loads that has nothing to do, and which run only because of one job of the own queue. Counted by
 * V8, in real processes with the process runtime. A file counts for the job if one of its functions runs only with it: in the command
 * `onejob run` any function that runs, in the daemon one that does not run without a job. What a daemon does by chance differs from one
 * time to the next, so each of both is done `rounds` times: without a job all count, with one only what runs each time.
 */
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { z } from 'zod';
import { untilIdle } from '../../bench/jobs.ts';
import { onejob } from '../../test/support/onejob.ts';

export interface Running {
  /** Files of `src` that a daemon without services and without jobs loads. */
  readonly loaded: readonly string[];
  /** Files that run only for one job. */
  readonly forJob: readonly string[];
}

const rounds = 3;
const root = resolve(import.meta.dirname, '..', '..');
const source = `file://${root}/src/`;

const coverage = z.object({
  result: z.array(
    z.object({
      url: z.string(),
      functions: z.array(
        z.object({ functionName: z.string(), ranges: z.array(z.object({ startOffset: z.number(), count: z.number() })) }),
      ),
    }),
  ),
});

/** Functions of a process that ran, as `file offset`; the file itself, which runs when it is loaded, is at offset 0. */
function ranIn(dir: string, pid: number): Set<string> {
  const names = readdirSync(dir).filter((name) => name.startsWith(`coverage-${pid}-`));
  const scripts = names.flatMap((name) => coverage.parse(JSON.parse(readFileSync(join(dir, name), 'utf8'))).result);
  const own = scripts.filter(({ url }) => url.startsWith(source));
  return new Set(
    own.flatMap(({ url, functions }) =>
      functions.flatMap(({ ranges: [whole] }) =>
        whole === undefined || whole.count === 0 ? [] : [`${url.slice(source.length)} ${whole.startOffset}`],
      ),
    ),
  );
}

const fileOf = (ran: string): string => ran.slice(0, ran.lastIndexOf(' '));
const isFunction = (ran: string): boolean => !ran.endsWith(' 0');
const filesOf = (ran: Iterable<string>): Set<string> => new Set([...ran].map(fileOf));

async function observe(dir: string, program: string, withJob: boolean): Promise<{ daemon: Set<string>; command: Set<string> }> {
  const config = JSON.stringify({ pools: { default: { runtime: 'process', isolation: 'none', agents: 1 } } });
  await using home = await onejob({ program, config, env: { NODE_V8_COVERAGE: dir } });
  const daemon = await home.up();
  let client = 0;
  await untilIdle(home.api);
  if (withJob) {
    const child = home.run('--no-workspace', '--', 'true');
    client = child.pid;
    const { code } = await child.ended;
    if (code !== 0) throw new Error(`onejob run ended with ${code}: ${child.stderr}`);
  }
  await daemon.stop();
  return { daemon: ranIn(dir, daemon.pid), command: client === 0 ? new Set() : ranIn(dir, client) };
}

const common = (sets: readonly Set<string>[]): Set<string> => sets.reduce((all, one) => all.intersection(one));
const union = (sets: readonly Set<string>[]): Set<string> => sets.reduce((all, one) => all.union(one));

/** Starts `rounds` daemons without a job, and as many with one. @throws Error if one of them fails */
export async function readRunning(): Promise<Running> {
  const dir = mkdtempSync(join(tmpdir(), 'oj-house-'));
  try {
    const program = join(dir, 'onejob');
    // bin/onejob takes NODE_V8_COVERAGE for something of its caller.
    const words = [process.execPath, '--disable-warning=ExperimentalWarning', join(root, 'src', 'main.ts')];
    writeFileSync(program, `#!/bin/sh\nexec ${words.map((word) => `'${word}'`).join(' ')} "$@"\n`, { mode: 0o755 });
    const times = async (name: string, withJob: boolean) => {
      const seen = [];
      for (let round = 0; round < rounds; round += 1) {
        const into = join(dir, `${name}-${round}`);
        mkdirSync(into);
        seen.push(await observe(into, program, withJob));
      }
      return seen;
    };
    const idle = await times('idle', false);
    const busy = await times('busy', true);
    const without = union(idle.map(({ daemon }) => daemon));
    const inDaemon = [...common(busy.map(({ daemon }) => daemon)).difference(without)].filter(isFunction);
    const inCommand = [...common(busy.map(({ command }) => command))].filter(isFunction);
    return {
      loaded: [...filesOf(common(idle.map(({ daemon }) => daemon)))].sort(),
      forJob: [...filesOf([...inDaemon, ...inCommand])].sort(),
    };
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}
