/** Jobs of all kinds, and what became of them, for runtimes that are to give the same results. */
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect } from 'vitest';
import type { JobView } from '../../src/contract/schema.ts';
import type { Ended } from './child.ts';
import type { Home } from './onejob.ts';

const steady = (text: string): string => text.replaceAll(/\b[0-9a-f]{12}\b/g, 'ID').replaceAll(/ after \d+m?s$/gm, ' after TIME');

interface Place {
  /** A folder that jobs see as `/results`; null: they share none. */
  readonly results: string | null;
  /** Whether the runtime cannot tell the two streams of a job apart. */
  readonly joinsOutput: boolean;
}

/**
 * Runs them in the pool `work`. Without what depends on the place: ids, times, what a job waits for, and what onejob says of a runtime's
 * isolation. With `joinsOutput`, lines of both streams are one list, in the order of the alphabet.
 */
export async function pipeline(home: Home, { results, joinsOutput }: Place): Promise<unknown> {
  const shown = ({ code, stdout, stderr }: Ended): unknown => {
    const said = stderr
      .split('\n')
      .filter((one) => one !== '' && !/^onejob: (?:Jobs |A GPU is not proved |job \w+ is waiting )/.test(one))
      .map(steady);
    if (!joinsOutput) return { code, stdout: steady(stdout), stderr: said };
    const lines = [...steady(stdout).split('\n'), ...said].filter((one) => one !== '');
    // Where there is an image, that is what may lack a command.
    const alike = (one: string) => one.replace(/^\/bin\/sh: /, 'sh: ').replace(/(a command was not found): .*/, '$1');
    return { code, lines: lines.map(alike).toSorted() };
  };
  const run = async (name: string, ...words: string[]): Promise<unknown> =>
    shown(await home.run('--pool', 'work', '--name', name, ...words).ended);
  const submit = async (name: string, ...words: string[]): Promise<string> =>
    (await home.run('--pool', 'work', '--name', name, '--detach', ...words).ended).stdout.trim();
  const cli = async (...words: string[]): Promise<unknown> => shown(await home.cli(words).ended);
  const files = (): Record<string, string> => {
    const names = readdirSync(home.cwd).toSorted();
    return Object.fromEntries(names.map((name) => [name, readFileSync(join(home.cwd, name), 'utf8')]));
  };
  const jobs = (): Promise<JobView[]> => home.api.jobs({ all: true, pool: null });
  const ofArray = async (name: string): Promise<JobView[]> =>
    (await jobs()).filter((job) => job.name === name).toSorted((a, b) => (a.array?.index ?? 0) - (b.array?.index ?? 0));

  writeFileSync(join(home.cwd, 'source.txt'), 'one\ntwo\n');
  const said: Record<string, unknown> = {
    made: await run('made', '--artifact', 'numbers.txt', '--', 'sh', '-c', 'wc -l <source.txt; seq 1 100 >numbers.txt'),
    failed: await run('failed', '--artifact', 'log', '--', 'sh', '-c', 'echo out; echo err >&2; echo why >log; exit 7'),
    killed: await run('killed', '--no-workspace', '--', 'sh', '-c', 'kill -9 $$'),
    unknown: await run('unknown', '--no-workspace', '--', 'no-such-command'),
    variables: await run('variables', '-e', 'MODE=fast', '--', 'sh', '-c', 'echo "$CI $MODE $ONEJOB_POOL $ONEJOB_ATTEMPT $PWD"'),
    late: await run(
      'late',
      ...['--timeout', '5s', '--no-workspace', '--'],
      ...['sh', '-c', 'trap "echo last; exit 3" TERM; echo first; while :; do sleep 0.05; done'],
    ),
  };
  // The first job of the first array fails, the others leave a file each.
  const count = 'test $ONEJOB_ARRAY_INDEX != 0 || exit 4; grep -c $ONEJOB_ARRAY_INDEX numbers.txt';
  said.array = await run('some', '--array', '0-2', '--artifact', 'part-*', '--', 'sh', '-c', `${count} >part-$ONEJOB_ARRAY_INDEX`);
  const some = await ofArray('some');
  for (const job of some.slice(1)) said[`artifacts of ${job.array?.index}`] = await cli('artifacts', job.id);
  const [keep, read] = results === null ? ['', 'echo after'] : [' | tee /results/$ONEJOB_ARRAY_INDEX', 'cat /results/*'];
  const all = await submit('all', '--array', '1-3', '--', 'sh', '-c', `${count}${keep}`);
  said.after = await run('after', '--needs', all, '--', 'sh', '-c', read);
  said.waited = await cli('wait', all);
  said.logs = await cli('logs', (await ofArray('all'))[0]?.id ?? '');

  const long = await submit(
    'long',
    '--no-workspace',
    '--',
    'sh',
    '-c',
    'trap "echo bye; exit 5" TERM; echo begun; while :; do sleep 0.05; done',
  );
  const never = home.run('--pool', 'work', '--name', 'never', '--needs', long, '--', 'echo', 'never');
  const log = home.cli(['logs', '-f', long]);
  await log.says(/begun/);
  await expect.poll(async () => (await jobs()).some(({ name }) => name === 'never')).toBe(true);
  said.cancel = await cli('cancel', long);
  said.never = shown(await never.ended);
  said.long = await cli('wait', long);
  said.words = shown(await log.ended);

  const ends = (await jobs()).map(({ name, array, state, attempt, outcome, result, reason, verdict }) => ({
    job: `${name} ${array?.index ?? ''}`.trim(),
    state,
    attempt,
    outcome,
    result,
    reason: steady(reason ?? ''),
    verdict: verdict?.kind,
    why: steady(verdict?.why ?? ''),
  }));
  const made = Object.fromEntries(
    (results === null ? [] : readdirSync(results)).map((name) => [name, readFileSync(join(`${results}`, name), 'utf8')]),
  );
  return { said, files: files(), made, ends: ends.toSorted((a, b) => (a.job < b.job ? -1 : 1)) };
}
