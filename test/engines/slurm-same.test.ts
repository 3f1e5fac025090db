/** The same jobs on this host and on a real Slurm: the tutorial's config, of which only `runtime` of the pool differs, gives the same results. */
import { chmodSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { onejob } from '../support/onejob.ts';
import { stepsOf } from '../support/page.ts';
import { pipeline } from '../support/pipeline.ts';
import { lacks } from '../support/require.ts';
import { type Slurm, startSlurm } from '../support/slurm.ts';

/** The line of the pool `work` that the tutorial changes. */
const line = /^ {4}runtime: cluster +# this was: (process)$/m;

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
      found.push(await pipeline(home, { results, joinsOutput: false }));
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
