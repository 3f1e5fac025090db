/** A trusted branch with the real agent and Git: what is built there is what is on it, whatever a build made by hand says. */
import { chmodSync } from 'node:fs';
import { beforeAll, describe, expect, test } from 'vitest';
import type { JobSpec } from '../standins/buildkite/standin.ts';
import { aDay, endOf } from '../support/buildkite-days.ts';
import { buildkiteImages, ensureBuildkiteImages, lacksGit } from '../support/buildkite-images.ts';
import { bareRepository } from '../support/buildkite-repository.ts';
import { lacks } from '../support/require.ts';
import { scratch } from '../support/scratch.ts';

describe.skipIf(lacks('docker', 'image', 'buildkiteAgent') || lacksGit() !== null)('a job of a trusted branch', () => {
  beforeAll(async () => void (await ensureBuildkiteImages()));

  test('is of a commit on that branch, or ends before anything of it runs; a tag of its name is not that branch', async () => {
    using dir = scratch();
    chmodSync(dir.path, 0o755);
    const app = bareRepository(dir.path);
    const old = app.commit('a');
    const last = app.commit('b');
    const other = app.branch('feature', 'evil');
    await using day = await aDay({
      image: buildkiteImages.git,
      pool: 'trust: { branches: [main], forks: refuse, others: refuse }',
      volumes: [`${dir.path}:/repositories`],
    });
    const { bench, here } = day;
    const daemon = await here.up();
    const build = (commit: string, more: Omit<JobSpec, 'command'> = {}) =>
      bench.job('echo "built $(git rev-parse HEAD)"', { checkout: true, repo: app.url, branch: 'main', commit, ...more });
    for (const commit of [old, last, 'HEAD']) {
      const good = await build(commit, commit === 'HEAD' ? {} : { env: { BUILDKITE_GIT_COMMIT_VERIFICATION: '' } });
      expect({ exit: good.exit, log: good.log }).toEqual({
        exit: 0,
        log: expect.stringContaining(`built ${commit === 'HEAD' ? last : commit}`),
      });
    }
    // Said by the pipeline, too: the agent has its own word for it.
    for (const env of [{}, { BUILDKITE_GIT_COMMIT_VERIFICATION: 'warn' }]) {
      const bad = await build(other, { env });
      expect(bad.exit).not.toBe(0);
      expect(bad.log).toContain(`commit "${other}" is not on branch "main"`);
      expect(bad.log).not.toContain('built ');
    }
    for (const [more, why] of [
      [{ env: { BUILDKITE_TAG: 'main' } }, 'its tag main does not match "trust.tags"'],
      [{ env: { BUILDKITE_REFSPEC: "'refs/heads/feature'" } }, 'is not a plain "refs/heads/…"'],
      [
        { env: { BUILDKITE_REFSPEC: 'refs/heads/feature' } },
        'onejob cannot verify that its refspec refs/heads/feature belongs to branch',
      ],
    ] as const) {
      const job = await build(last, more);
      expect(`${job.log}${job.detail ?? ''}`).toContain(why);
      expect(job.log).not.toContain('built ');
    }
    await endOf(day, daemon);
  });
});
