/** Caches of Buildkite's agents on the real Engine: whose they are, who never sees them, and what becomes of them. */
import { chmodSync, existsSync, mkdirSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, describe, expect, test } from 'vitest';
import type { JobSpec } from '../standins/buildkite/standin.ts';
import type { BuildkiteConfig } from '../support/buildkite.ts';
import { aDay, down, endOf, works } from '../support/buildkite-days.ts';
import { untilAsking } from '../support/buildkite-host.ts';
import { buildkiteImages, ensureBuildkiteImages, lacksGit } from '../support/buildkite-images.ts';
import { bareRepository } from '../support/buildkite-repository.ts';
import { lacks } from '../support/require.ts';
import { scratch } from '../support/scratch.ts';

const repo = 'https://github.com/acme/solver.git';
const pull = (owner: string): Omit<JobSpec, 'command'> => ({
  repo,
  pullRequest: 7,
  pullRequestRepo: `https://github.com/${owner}/solver`,
});
const look = 'echo "has: $(ls /depot 2>/dev/null | tr "\\n" " ")"';

/** Lines that say it, in the log of a job that went well. */
const has = (log: string): string => /^has: (.*)$/m.exec(log)?.[1]?.trim() ?? 'no such line';

describe.skipIf(lacks('docker', 'image', 'buildkiteAgent'))('a cache', () => {
  test('is kept for the next agent of its slot, is not another slot’s, and untrusted jobs have one of each repository', async () => {
    const config: BuildkiteConfig = {
      agents: 2,
      pool: 'name: "b.{n}", caches: ["depot:/depot"], trust: { caches: private }',
    };
    await using day = await aDay(config);
    const { bench, here } = day;
    let daemon = await here.up();
    await untilAsking(bench);
    // Both slots are busy at once, so each has one of them.
    const both = ['one', 'two'].map((name) =>
      bench.buildkite.queueJob({ command: `touch /depot/${name}; echo began; until [ -e /go/both ]; do sleep 0.1; done`, repo }),
    );
    await expect.poll(() => both.every((id) => /^began$/m.test(bench.buildkite.job(id).log)), { timeout: 30_000 }).toBe(true);
    bench.go('both');
    const names = new Map<string, string>();
    for (const [n, id] of both.entries()) {
      const job = await bench.buildkite.jobEnded(id);
      names.set(job.agent?.name ?? '', ['one', 'two'][n] ?? '');
    }
    expect([...names.keys()].sort()).toEqual(['b.1', 'b.2']);
    const own = async (): Promise<void> => {
      const job = await bench.job(look, { repo });
      expect(has(job.log)).toBe(names.get(job.agent?.name ?? ''));
    };
    await own();
    // Whichever slot it is, those of one fork share theirs, and nobody else has them.
    const fork = async (owner: string, command = look) => has((await bench.job(command, pull(owner))).log);
    expect(await fork('mallory', `${look}; touch /depot/poison`)).toBe('');
    expect(await fork('mallory')).toBe('poison');
    expect(await fork('trent')).toBe('');
    await own();
    await daemon.stop();
    daemon = await here.up();
    await own();
    expect(await fork('mallory')).toBe('poison');
    await down(here);
    await endOf(day, daemon);
    expect(readdirSync(join(here.stateDir, 'caches/ci')).sort()).toEqual(['b.1', 'b.2', 'untrusted']);
    expect(existsSync(join(here.stateDir, 'caches/ci/b.1/depot', names.get('b.1') ?? 'none'))).toBe(true);
  });

  test('of a path of the host is the agent’s of that name; untrusted jobs have none', async () => {
    using dir = scratch();
    for (const name of ['b.1', 'b.2']) mkdirSync(join(dir.path, name));
    await using day = await aDay({ pool: `name: "b.{n}", caches: ["${dir.path}/{name}:/depot:DEPOT"]` });
    const { bench, here } = day;
    const daemon = await here.up();
    const kept = await bench.job('touch "$DEPOT/kept"', { repo });
    expect([kept.agent?.name, readdirSync(join(dir.path, 'b.1')), readdirSync(join(dir.path, 'b.2'))]).toEqual([
      'b.1',
      ['kept'],
      [],
    ]);
    expect(has((await bench.job(look, { repo })).log)).toBe('kept');
    expect(has((await bench.job(look, pull('mallory'))).log)).toBe('');
    await endOf(day, daemon);
    expect(readdirSync(join(dir.path, 'b.1'))).toEqual(['kept']);
  });

  test('loses beyond its limit what was not used for longest, between two agents', async () => {
    await using day = await aDay({ pool: 'name: "b.{n}", caches: ["depot:/depot"], cache_limit: 2MiB' });
    const { bench, here } = day;
    const daemon = await here.up();
    const fill = (name: string) => `mkdir /depot/${name}; head -c 1500000 /dev/zero | tr "\\0" x >/depot/${name}/f`;
    await works(bench);
    await bench.job(`${fill('old')}; touch -d @1000000000 /depot/old/f /depot/old; touch /depot/kept`);
    const later = await bench.job(`${fill('new')}; ${look}`);
    expect(has(later.log)).toBe('kept new old');
    await expect.poll(() => readdirSync(join(here.stateDir, 'caches/ci/b.1/depot')).sort()).toEqual(['kept', 'new']);
    expect(has((await bench.job(look)).log)).toBe('kept new');
    await endOf(day, daemon);
  });
});

describe.skipIf(lacks('docker', 'image', 'buildkiteAgent') || lacksGit() !== null)('Git', () => {
  beforeAll(async () => void (await ensureBuildkiteImages()));

  test('checks out twice, the second time from the mirror in a cache; the mirror of trusted jobs is not for others', async () => {
    using dir = scratch();
    chmodSync(dir.path, 0o755);
    const app = bareRepository(dir.path);
    const env = 'env: { BUILDKITE_GIT_MIRRORS_PATH: /mirrors }, caches: ["mirrors:/mirrors"]';
    await using day = await aDay({
      image: buildkiteImages.git,
      pool: `name: "b.{n}", ${env}`,
      volumes: [`${dir.path}:/repositories`],
    });
    const { bench, here } = day;
    const daemon = await here.up();
    const build = async (commit: string, more: Omit<JobSpec, 'command'> = {}) => {
      const job = await bench.job('echo "files: $(ls | tr "\\n" " ")"; git rev-parse HEAD', {
        checkout: true,
        repo: app.url,
        commit,
        ...more,
      });
      expect({ exit: job.exit, log: job.log }).toEqual({ exit: 0, log: expect.stringContaining(commit) });
      return job.log;
    };
    const first = await build(app.commit('a'));
    expect(first).toContain('files: a');
    expect(first).toMatch(/git clone --mirror/);
    const second = await build(app.commit('b'));
    expect(second).toContain('files: a b');
    expect(second).not.toMatch(/git clone --mirror/);
    expect(second).toMatch(/--reference \/mirrors\//);
    // A fork's has nothing at this place, and what it makes there goes with it.
    const fork = { pullRequest: 7, pullRequestRepo: 'file:///elsewhere.git' };
    for (const file of ['c', 'd']) expect(await build(app.commit(file), fork)).toMatch(/git clone --mirror/);
    expect(await build(app.commit('e'))).not.toMatch(/git clone --mirror/);
    await endOf(day, daemon);
  });
});
