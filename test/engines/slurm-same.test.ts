/** The same jobs on this host and on a real Slurm: the tutorial's config, of which only `runtime` of the pool differs, gives the same results. */
import { chmodSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { JobView } from '../../src/contract/schema.ts';
import type { Ended } from '../support/child.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { stepsOf } from '../support/page.ts';
import { lacks } from '../support/require.ts';
import { type Slurm, startSlurm } from '../support/slurm.ts';

/** The line of the pool `work` that the tutorial changes. */
const line = /^ {4}runtime: cluster +# this was: (process)$/m;

const steady = (text: string): string => text.replaceAll(/\b[0-9a-f]{12}\b/g, 'ID').replaceAll(/ after \d+m?s$/gm, ' after TIME');

/** Without what depends on the place: ids, times, what a job waits for, and what onejob says of a runtime's isolation. */
async function pipeline(home: Home, results: string): Promise<unknown> {
  const shown = ({ code, stdout, stderr }: Ended): unknown => ({
    code,
    stdout: steady(stdout),
    stderr: stderr
      .split('\n')
      .filter((one) => one !== '' && !/^onejob: (?:Jobs |job \w+ is waiting )/.test(one))
      .map(steady),
  });
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
  const all = await submit('all', '--array', '1-3', '--', 'sh', '-c', `${count} | tee /results/$ONEJOB_ARRAY_INDEX`);
  said.after = await run('after', '--needs', all, '--', 'sh', '-c', 'cat /results/*');
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
  const made = Object.fromEntries(readdirSync(results).map((name) => [name, readFileSync(join(results, name), 'utf8')]));
  return { said, files: files(), made, ends: ends.toSorted((a, b) => (a.job < b.job ? -1 : 1)) };
}

describe.skipIf(lacks('slurm', 'bubblewrap'))('the pipeline of the tutorial', () => {
  let cluster: Slurm;
  beforeAll(async () => {
    cluster = await startSlurm();
  });
  afterAll(() => cluster?.[Symbol.asyncDispose]());

  test('has the same results on this host and on Slurm', async () => {
    const page = stepsOf('docs/tutorials/slurm.md').flatMap((step) => (step.kind === 'config' ? [step.text] : []));
    const [onHost = '', onSlurm = ''] = page;
    const pool = (text: string): string => /^ {2}work:\n(?: {4}.*\n)+/m.exec(text)?.[0] ?? '';
    expect(pool(onHost)).not.toBe('');
    expect(pool(onSlurm).replace(line, '    runtime: $1')).toBe(pool(onHost));

    const found: unknown[] = [];
    for (const runtime of ['process', 'cluster']) {
      const shared = join(cluster.folder, runtime);
      const results = join(shared, 'results');
      mkdirSync(results, { recursive: true });
      // On this host jobs of root are of users of their own.
      chmodSync(results, 0o777);
      const config = onSlurm
        .replace(line, `    runtime: ${runtime}`)
        .replaceAll('/shared/ada', shared)
        .replace('type: slurm,', `type: slurm, conf: "${cluster.env.SLURM_CONF}", poll: 1s,`);
      await using home = await onejob({ config });
      await home.up();
      found.push(await pipeline(home, results));
    }
    const [host, slurm] = found;
    expect(host).toMatchObject({
      files: {
        log: 'why\n',
        'numbers.txt': expect.stringMatching(/^1\n2\n(?:\d+\n){97}100\n$/),
        'part-1': '20\n',
        'part-2': '19\n',
      },
      made: { 1: '20\n', 2: '19\n', 3: '19\n' },
      said: { failed: { code: 7 }, killed: { code: 137 }, unknown: { code: 127 }, late: { code: 124, stdout: 'first\nlast\n' } },
    });
    expect(slurm).toEqual(host);
    expect(await cluster.run('squeue', '-h')).toBe('');
  });
});
