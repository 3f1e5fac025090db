/** What it takes to send a workspace: as an older client does, for the first time, unchanged, and with one file changed. */
import { execFileSync } from 'node:child_process';
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { packWorkspace } from '../src/workspace/pack.ts';
import { onejob } from '../test/support/onejob.ts';
import { done } from './jobs.ts';
import { type Ratio, ratio, rounded } from './stats.ts';

const files = 20_000;
const bytes = 20_000;

export interface Sending {
  /** s, until the job is accepted: tar to a flushed file, and what Git says of the folder; an older client; this one. */
  readonly seconds: Readonly<Record<'tar' | 'status' | 'before' | 'first' | 'unchanged' | 'oneFile', number>>;
  /** s, until a job of `true` has ended: an older client; this one, unchanged. */
  readonly toEnd: Readonly<Record<'before' | 'unchanged', number>>;
  /** In pairs with an older client. */
  readonly unchanged: Ratio;
  readonly oneFile: Ratio;
  readonly first: Ratio;
  readonly ended: Ratio;
}

/**
 * A Git repository of 20,000 files and 400 MB, or less, which is made in `dir`. Process runtime. `program`: an older onejob; null: what
 * it does is done here, without the start of a command.
 */
export async function sendingFigures(rounds: number, share: number, dir: string, program: string | null): Promise<Sending> {
  const top = join(dir, 'tree');
  makeTree(top, files * share);
  // The files must have been unchanged for some time, and on disk.
  execFileSync('sync');
  await pause(2_500);
  await using home = await onejob({ config: JSON.stringify({ pools: { default: { runtime: 'process', agents: 1 } } }) });
  await home.up();
  const timed = async (act: () => unknown): Promise<number> => {
    const began = performance.now();
    await act();
    return rounded((performance.now() - began) / 1000);
  };
  const run = async (env: Record<string, string>, ...options: string[]): Promise<void> => {
    const { code, stderr } = await home.cli(['run', ...options, '--', 'true'], { cwd: top, env }).ended;
    if (code !== 0) throw new Error(`onejob run ended with ${code}: ${stderr}`);
  };
  const older = async (): Promise<string> => {
    if (program !== null)
      return execFileSync(program, ['run', '--detach', '--', 'true'], { cwd: top, env: home.env, encoding: 'utf8' }).trim();
    const workspace = await home.api.putWorkspace((await packWorkspace(top)).stream);
    return (await home.api.submit({ pool: null, command: ['true'], workspace })).id;
  };
  const clear = async (): Promise<void> => {
    await home.cli(['cancel', '--waiting']).ended;
    execFileSync('sync');
  };
  const all: Sending['seconds'][] = [];
  const ends: Sending['toEnd'][] = [];
  for (let round = 0; round < rounds; round += 1) {
    const env = { XDG_CACHE_HOME: join(dir, `cache${round}`) };
    await home.api.pause(null, 'bench');
    const tar = await timed(() =>
      execFileSync('sh', ['-c', 'tar --exclude=.git -cf - . | dd of="$1" bs=256K conv=fsync status=none', 'sh', join(dir, 'tar')], {
        cwd: top,
      }),
    );
    rmSync(join(dir, 'tar'));
    const status = await timed(() => execFileSync('git', ['status', '--porcelain'], { cwd: top }));
    const before = await timed(older);
    await clear();
    const first = await timed(() => run(env, '--detach'));
    await clear();
    const unchanged = await timed(() => run(env, '--detach'));
    writeFileSync(join(top, 'src', '7', '7.bin'), `round ${round}`);
    const oneFile = await timed(() => run(env, '--detach'));
    await clear();
    all.push({ tar, status, before, first, unchanged, oneFile });
    await home.api.resume(null, 'bench');
    const olderEnd = await timed(async () => done(home.api, await older()));
    ends.push({ before: olderEnd, unchanged: await timed(() => run(env)) });
  }
  const median = <T extends Readonly<Record<string, number>>>(each: readonly T[]): T => {
    const of = (key: string) => each.map((one) => one[key] ?? Number.NaN).sort((a, b) => a - b)[Math.floor(each.length / 2)];
    return Object.fromEntries(Object.keys(each[0] ?? {}).map((key) => [key, of(key)])) as T;
  };
  const against = (key: keyof Sending['seconds']) => ratio(all.map((one) => [one.before, one[key]] as const));
  return {
    seconds: median(all),
    toEnd: median(ends),
    unchanged: against('unchanged'),
    oneFile: against('oneFile'),
    first: against('first'),
    ended: ratio(ends.map((one) => [one.before, one.unchanged] as const)),
  };
}

function makeTree(top: string, count: number): void {
  const content = Buffer.alloc(bytes);
  for (let n = 0; n < count; n += 1) {
    const folder = join(top, 'src', String(n % 200));
    if (n < 200) mkdirSync(folder, { recursive: true });
    content.writeUInt32LE(n);
    writeFileSync(join(folder, `${n}.bin`), content);
  }
  const git = (...args: string[]) => execFileSync('git', ['-c', 'user.name=b', '-c', 'user.email=b@b', ...args], { cwd: top });
  git('init', '--quiet');
  git('add', '--all');
  git('commit', '--quiet', '--message', 'bench');
}
