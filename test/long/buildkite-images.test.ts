/** Images and pool options as Buildkite's agents and their jobs meet them, with Git and the real agent on the real Engine. */
import { execFileSync } from 'node:child_process';
import { chmodSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, describe, expect, test } from 'vitest';
import type { JobSpec } from '../standins/buildkite/standin.ts';
import type { BuildkiteBench } from '../support/buildkite.ts';
import { aDay, endOf, troubleOf, untilSays, works } from '../support/buildkite-days.ts';
import { untilAsking } from '../support/buildkite-host.ts';
import { buildkiteImages, ensureBuildkiteImages, lacksGit } from '../support/buildkite-images.ts';
import { bareRepository } from '../support/buildkite-repository.ts';
import { ensureImages, images } from '../support/images.ts';
import { standbyOf } from '../support/look.ts';
import type { Home } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';
import { scratch } from '../support/scratch.ts';

/** Where a person finds what onejob says of a pool. */
async function doctor(here: Home): Promise<string> {
  return (await here.cli(['doctor']).ended).stdout.replaceAll(/\s+/g, ' ');
}

/** Images outlive a manager, and tests are not the only ones here. */
async function removeImages(here: Home): Promise<void> {
  await here.cli(['down', '--now']).ended;
  here.configure('pools: { none: { agents: 1, runtime: process } }\n');
  const { code, stderr } = await here.cli(['image', 'prune']).ended;
  expect([code, stderr]).toEqual([0, '']);
}

/** Checks out, and looks around as its user. */
async function looksAround(bench: BuildkiteBench, spec: Omit<JobSpec, 'command'>): Promise<string> {
  const look = [
    'echo "files: $(ls | tr "\\n" " ")"; git rev-parse HEAD; id -un',
    'echo >~/.kept && echo "home $HOME"; echo >/tmp/file && echo temporary',
    'buildkite-agent meta-data set key value && buildkite-agent meta-data get key; echo',
    'buildkite-agent env get BUILDKITE_JOB_ID >/dev/null && echo socket',
    'pwd; [ -w . ] && echo writable',
  ];
  const job = await bench.job(look.join('\n'), { checkout: true, ...spec });
  expect(job.exit, job.log).toBe(0);
  for (const line of ['temporary', 'value', 'socket', 'writable', spec.commit ?? ''])
    expect(job.log).toMatch(new RegExp(`^${line}$`, 'm'));
  return job.log;
}

describe.skipIf(lacks('docker', 'image', 'busybox', 'buildkiteAgent') || lacksGit() !== null)('an image', () => {
  beforeAll(async () => {
    await ensureImages();
    await ensureBuildkiteImages();
  });

  test('on a base that has all of it is built without a network, and checks out', async () => {
    using dir = scratch();
    const app = bareRepository(dir.path);
    await using day = await aDay();
    const { bench, here } = day;
    await using _images = { [Symbol.asyncDispose]: () => removeImages(here) };
    const image = '{ base: "@" }'.replace('@', buildkiteImages.git);
    here.configure(bench.config({ volumes: [`${dir.path}:/repositories`] }).replace('"debian:stable-slim"', image));
    const daemon = await here.up();
    const log = await looksAround(bench, { repo: app.url, commit: app.commit('a') });
    expect(log).toContain('home /root');
    expect(await doctor(here)).toMatch(/ok pool ci: Its image is onejob\/buildkite:[0-9a-f]{12}/);
    await endOf(day, daemon);
  });

  test('on a base that lacks Git and can install nothing is not built, with the reason', async () => {
    await using day = await aDay();
    const { bench, here } = day;
    await using _images = { [Symbol.asyncDispose]: () => removeImages(here) };
    here.configure(bench.config().replace('"debian:stable-slim"', `{ base: "${images.base}" }`));
    const daemon = await here.up();
    await expect
      .poll(() => troubleOf(here), { timeout: 60_000 })
      .toMatch(/This base lacks bash git ca-certificates, and has neither apt-get/);
    await endOf(day, daemon);
  });

  test('that is finished and has no bash: doctor names what it lacks', async () => {
    await using day = await aDay({ image: images.base });
    const { bench, here } = day;
    const daemon = await here.up();
    await untilAsking(bench);
    expect(await doctor(here)).toMatch(/pool ci.*bash/);
    const job = await bench.job('echo hello');
    expect({ exit: job.exit === 0, log: job.log }).toEqual({ exit: false, log: expect.stringContaining('bash') });
    await endOf(day, daemon);
  });

  test('of a user of its own, with an entrypoint, on a root that is read-only', async () => {
    using dir = scratch();
    chmodSync(dir.path, 0o755);
    const app = bareRepository(dir.path);
    const commit = app.commit('a');
    execFileSync('chown', ['-R', '1000:1000', join(dir.path, 'app.git')]);
    const volumes = [`${dir.path}:/repositories`];
    await using day = await aDay({ image: buildkiteImages.user, volumes });
    const { bench, here } = day;
    let daemon = await here.up();
    const log = await looksAround(bench, { repo: app.url, commit });
    expect(log).toMatch(/^builder$/m);
    expect(log).toContain('home /home/builder');
    await daemon.stop();
    here.configure(
      bench.config({ image: buildkiteImages.user, volumes, pool: 'read_only: true, tmpfs: { /home/builder: "size=1m,uid=1000" }' }),
    );
    daemon = await here.up();
    expect(await looksAround(bench, { repo: app.url, commit })).toContain('home /home/builder');
    expect((await bench.job('touch /usr/x')).log).toContain('Read-only file system');
    await endOf(day, daemon);
  });

  test('with the agent in it: nothing is mounted, its version is said', async () => {
    await using day = await aDay();
    const { bench, here } = day;
    here.configure(bench.config({ image: buildkiteImages.baked }).replace(/agent: \{ from: [^}]* \}/, 'agent: { from: image }'));
    const daemon = await here.up();
    const { log } = await bench.job('command -v buildkite-agent; grep -c buildkite-agent /proc/self/mountinfo || :');
    expect(log).toMatch(/^\/usr\/bin\/buildkite-agent\n0$/m);
    await endOf(day, daemon);
  });
});

describe.skipIf(lacks('docker', 'image', 'buildkiteAgent') || lacksGit() !== null)('a pool', () => {
  beforeAll(async () => void (await ensureBuildkiteImages()));

  test('gives its jobs hooks and plugins, and says how many threads they have', async () => {
    using dir = scratch();
    chmodSync(dir.path, 0o755);
    const plugin = bareRepository(dir.path, 'plug');
    plugin.commit('hooks/environment', 'export FROM_PLUGIN="a plugin for $BUILDKITE_PLUGIN_PLUG_GIT_WHOM"\n');
    mkdirSync(join(dir.path, 'hooks'));
    writeFileSync(join(dir.path, 'hooks/environment'), 'export FROM_HOOK="a hook of $BUILDKITE_AGENT_NAME"\n');
    const volumes = [`${dir.path}:/repositories`];
    const pool = `name: "b.{n}", hooks: ${join(dir.path, 'hooks')}, cpus: 1.5, cpu_env: JULIA_CPU_THREADS, env: { WHO: "{name}" }`;
    await using day = await aDay({ image: buildkiteImages.git, volumes, pool });
    const { bench, here } = day;
    let daemon = await here.up();
    const env = { BUILDKITE_PLUGINS: JSON.stringify([{ [`${plugin.url}#main`]: { whom: 'all' } }]) };
    const say = 'echo "$FROM_HOOK, $FROM_PLUGIN, $JULIA_CPU_THREADS thread, $WHO"; touch $BUILDKITE_HOOKS_PATH/x || true';
    const job = await bench.job(say, { env });
    expect(job.log).toContain('a hook of b.1, a plugin for all, 1 thread, b.1\n');
    expect(job.log).toContain('Read-only file system');
    await daemon.stop();

    // Plugins of the host, where the agent of that name looks for them: none is fetched.
    const kept = join(dir.path, 'plugins/b.1/repositories-plug-git-main');
    execFileSync('git', ['clone', '-q', join(dir.path, 'plug.git'), kept]);
    here.configure(bench.config({ image: buildkiteImages.git, volumes, pool: `${pool}, plugins: ${join(dir.path, 'plugins')}` }));
    daemon = await here.up();
    const again = await bench.job(say, { env });
    expect(again.log).toContain('a hook of b.1, a plugin for all, 1 thread, b.1\n');
    expect(again.log).not.toContain('git clone');
    await endOf(day, daemon);
  });

  test('of higher priority takes jobs first, one for benchmarks what others leave; tags are as they were written', async () => {
    const tags = 'tags: "cap=sm_80,gpu=a100,cap=recent,multigpu"';
    const pools = (keys: string) => `service: bk, queue: default, agents: 1, image: "debian:stable-slim", volumes: ["@"], ${keys}`;
    await using day = await aDay({ pool: `name: mid, priority: 4, ${tags}` });
    const { bench, here } = day;
    const { buildkite } = bench;
    const config = bench.config({
      pool: `name: mid, priority: 4, ${tags}`,
      pools: [
        `  high: { ${pools('name: high, priority: 9')} }`,
        `  bench: { ${pools('name: bench, priority: 0, tags: { benchmark: true }')} }`,
      ].join('\n'),
    });
    const [, gate = ''] = /volumes: \["([^"]+)"/.exec(config) ?? [];
    here.configure(config.replaceAll('"@"', `"${gate}"`));
    const daemon = await here.up();
    await untilAsking(bench);
    await expect.poll(() => Promise.all(['ci/1', 'high/1', 'bench/1'].map((key) => standbyOf(here, key)))).not.toContain(null);
    const order: string[] = [];
    for (const name of ['first', 'second', 'third']) {
      const id = bench.hold(name);
      await untilSays(bench, id, new RegExp(`^began ${name}$`, 'm'));
      order.push(buildkite.job(id).agent?.name ?? '');
    }
    expect(order).toEqual(['high', 'mid', 'bench']);
    expect(Object.fromEntries(buildkite.agents().map(({ name, tags: its }) => [name, its]))).toEqual({
      mid: ['queue=default', 'cap=sm_80', 'gpu=a100', 'cap=recent', 'multigpu'],
      high: ['queue=default'],
      bench: ['queue=default', 'benchmark=true'],
    });
    const picky = ['cap=sm_80', 'cap=recent'].map((rule) => buildkite.queueJob({ command: 'echo picked', rules: [rule] }));
    for (const name of ['first', 'second', 'third']) bench.go(name);
    for (const id of picky) expect((await buildkite.jobEnded(id)).agent?.name).toBe('mid');
    await works(bench, { rules: ['multigpu=*'] });
    await expect.poll(() => buildkite.census().jobs).toEqual([]);
    await endOf(day, daemon);
  });
});
