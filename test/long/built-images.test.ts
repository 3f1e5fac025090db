/** Images that onejob builds, as its users meet them: at the first need of a pool, by a command, and when a newer agent is there. */

import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { packAgent } from '../standins/azure-devops/agent/pack.ts';
import { azureBench, expectClean, untilIdle, untilRunning } from '../support/azure.ts';
import { azureImages, ensureAzureImages } from '../support/azure-images.ts';
import { engineAt } from '../support/engine-http.ts';
import { ensureImages, images } from '../support/images.ts';
import { poolOf, slotOf, standbyOf } from '../support/look.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

interface Listed {
  readonly reference: string;
  readonly pools: string[];
  readonly agent: string | null;
}

async function imagesOf(here: Home): Promise<Listed[]> {
  const { stdout } = await here.cli(['image', 'list', '--json']).ended;
  return stdout
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as Listed);
}

/** A home whose images are gone in the end: they outlive a manager, and tests are not the only ones here. */
async function home(config: string): Promise<Home> {
  const here = await onejob({ config });
  onTestFinished(async () => {
    await removeImages(here);
    await here.close();
  });
  return here;
}

async function removeImages(here: Home): Promise<void> {
  await here.cli(['down', '--now']).ended;
  here.configure('pools: { none: { agents: 1, runtime: process } }\n');
  const { code, stderr } = await here.cli(['image', 'prune']).ended;
  expect([code, stderr]).toEqual([0, '']);
  expect(await imagesOf(here)).toEqual([]);
}

/** A Dockerfile of a test's own, so that no other test has built it. */
function dockerfile(here: { readonly dir: string }, ...lines: string[]): string {
  const path = join(here.dir, 'Dockerfile');
  writeFileSync(path, [`FROM ${images.base}`, `ENV MARK=${randomBytes(5).toString('hex')}`, ...lines, ''].join('\n'));
  return path;
}

const run = (here: Home, pool: string, ...command: string[]) => here.run('--no-workspace', '--pool', pool, '--', ...command).ended;
const labPool = (path: string, more = '') => `pools:
  lab: { agents: 2, runtime: docker, network: none, stop_grace: 1s, image: { dockerfile: ${path} }${more} }
  plain: { agents: 1, runtime: docker, network: none, stop_grace: 1s, image: "${images.base}" }
`;

describe.skipIf(lacks('docker', 'busybox'))('a pool with a recipe', () => {
  test('is built for at first need, while others continue; a restart takes up what is there', async () => {
    await ensureImages();
    const here = await home('');
    const path = dockerfile(
      here,
      'RUN until [ -e /tmp/never ] || [ "$n" = xxxxxxxxxxxx ]; do n=x$n; sleep 1; done; echo made >/made',
    );
    here.configure(labPool(path));
    const daemon = await here.up();
    await expect.poll(async () => (await slotOf(here, 'lab/1')).note).toMatch(/^building the image: step \d\/\d until/);
    expect(await run(here, 'plain', 'true')).toMatchObject({ code: 0 });
    expect((await slotOf(here, 'lab/2')).note).toMatch(/^building the image/);
    expect(await run(here, 'lab', 'cat', '/made')).toMatchObject({ code: 0, stdout: 'made\n' });
    expect(await imagesOf(here)).toMatchObject([{ pools: ['lab'], agent: null }]);
    expect((await here.cli(['doctor']).ended).stdout).toMatch(/ok\s+pool lab: Its image is onejob\/own-queue:[0-9a-f]{12}/);

    await expect.poll(() => standbyOf(here, 'lab/1')).not.toBeNull();
    const standby = await standbyOf(here, 'lab/1');
    daemon.child.signal('SIGKILL');
    await daemon.child.ended;
    await here.up();
    expect(await standbyOf(here, 'lab/1')).toBe(standby);
    await expect.poll(async () => (await poolOf(here, 'lab')).paused).toEqual([]);
    expect(await run(here, 'lab', 'cat', '/made')).toMatchObject({ code: 0 });
    expect(await here.cli(['image', 'prune']).ended).toMatchObject({
      code: 0,
      stdout: expect.stringContaining('Nothing to remove'),
    });
  });

  test('that cannot be built backs off with its last lines; once fixed, it works by itself', async () => {
    await ensureImages();
    const here = await home('');
    const path = dockerfile(here, 'RUN echo oh no; exit 7');
    here.configure(labPool(path));
    await here.up();
    await expect.poll(async () => (await poolOf(here, 'lab')).backoff?.reason).toMatch(/code: 7\.\nIts last lines:\n {2}oh no/);
    expect((await poolOf(here, 'lab')).backoff).toMatchObject({ failures: 1 });
    expect(await run(here, 'plain', 'true')).toMatchObject({ code: 0 });
    const failed = await here.cli(['image', 'build', 'lab', 'plain']).ended;
    expect(failed).toMatchObject({ code: 1, stdout: expect.stringMatching(/^plain: onejob-test\/base:1 exists$/m) });
    expect(failed.stderr).toContain('oh no');
    writeFileSync(path, readFileSync(path, 'utf8').replace('exit 7', 'true'));
    expect(await here.cli(['image', 'build']).ended).toMatchObject({
      code: 0,
      stdout: expect.stringMatching(/^lab: .* was built$/m),
    });
    expect(await run(here, 'lab', 'true')).toMatchObject({ code: 0 });
  });

  test('a manager that is killed while it builds leaves nothing that runs, and the next one builds anew', async () => {
    await ensureImages();
    const here = await home('');
    const mark = randomBytes(5).toString('hex');
    const path = dockerfile(here, `RUN sleep 600 # ${mark}`);
    here.configure(labPool(path));
    const daemon = await here.up();
    using engine = engineAt();
    const building = async () => JSON.stringify(await engine.ok('GET', '/containers/json?all=true')).includes(mark);
    await expect.poll(building).toBe(true);
    await daemon.kill();
    await expect.poll(building).toBe(false);
    writeFileSync(path, readFileSync(path, 'utf8').replace('sleep 600', 'sleep 0'));
    await here.up();
    expect(await run(here, 'lab', 'true')).toMatchObject({ code: 0 });
  });

  test('works without a daemon, and what is built can be read and built by hand', async () => {
    await ensureImages();
    const here = await home('');
    const path = dockerfile(here, 'RUN echo by hand >/made');
    here.configure(labPool(path));
    const printed = await here.cli(['image', 'build', 'lab', '--print']).ended;
    expect(printed.stdout).toContain(readFileSync(path, 'utf8').trim());
    const built = await here.cli(['image', 'build', 'lab']).ended;
    expect(built).toMatchObject({ code: 0, stdout: expect.stringMatching(/^lab: onejob\/own-queue:[0-9a-f]{12} was built\n$/) });
    expect(built.stderr).toContain('lab: building the image: step');
    expect(await here.cli(['image', 'build']).ended).toMatchObject({ stdout: expect.stringContaining('exists'), stderr: '' });
    expect(await here.cli(['image', 'refresh', 'nope']).ended).toMatchObject({
      code: 1,
      stderr: expect.stringContaining('lab, plain'),
    });
    writeFileSync(path, `${readFileSync(path, 'utf8')}RUN true\n`);
    expect(await here.cli(['image', 'refresh']).ended).toMatchObject({ code: 0 });
    const two = await imagesOf(here);
    expect(two.map(({ pools }) => pools)).toEqual([['lab'], []]);
    const pruned = await here.cli(['image', 'prune']).ended;
    expect(pruned.stdout).toBe(`removed ${two[1]?.reference}\n`);
  });
});

describe.skipIf(lacks('docker', 'busybox'))('an image for Azure Pipelines', () => {
  const base = azureImages.base;

  test('is built from the service’s own package, and renewed slot by slot, never under a running job', async () => {
    await using bench = await azureBench();
    const { azure, pool } = bench;
    const old = await packAgent('5.277.1');
    await azure.addPackage({ version: old.version, file: old.file });
    const mark = randomBytes(5).toString('hex');
    const recipe = `image: { base: "${base}" }, env: { MARK: "${mark}" }`;
    const config = bench.config({ agents: 2 }).replace(`image: "${azureImages.agent}"`, recipe);
    const here = await home(config);
    const daemon = await here.up();
    await untilIdle(bench, 2, 60_000);
    expect(await imagesOf(here)).toMatchObject([{ pools: ['ci'], agent: '5.277.1' }]);
    const first = await azure.queue(pool, { script: 'id -u; pwd; echo well' }).finished;
    expect(first).toMatchObject({ result: 'succeeded', log: expect.stringMatching(/1000[\s\S]*well/) });

    const long = bench.hold('long');
    await untilRunning(long);
    const agentOf = (id: number | null | undefined) => azure.agents(pool).find((one) => one.id === id);
    const running = long.view().agent;
    const next = await packAgent('5.278.0');
    await azure.addPackage({ version: next.version, file: next.file });
    const refreshed = await here.cli(['image', 'refresh']).ended;
    expect(refreshed).toMatchObject({
      code: 0,
      stdout: expect.stringMatching(/^ci: onejob\/azure-pipelines:\w+ \(agent 5\.278\.0\) is new/),
    });
    // The idle one is another soon; the busy one is who it was.
    await expect
      .poll(() => azure.agents(pool).filter(({ online, version }) => online && version === '5.278.0').length, { timeout: 60_000 })
      .toBe(1);
    expect(agentOf(running?.id)).toMatchObject({ online: true, version: '5.277.1' });
    bench.go('long');
    expect(await long.finished).toMatchObject({ result: 'succeeded' });
    // The new image has to prove itself first: one of two jobs at a time runs in it.
    await untilIdle(bench, 2, 60_000);
    const proofs = [azure.queue(pool, { script: 'true' }), azure.queue(pool, { script: 'true' })];
    for (const proof of proofs) expect(await proof.finished).toMatchObject({ result: 'succeeded' });
    await expect
      .poll(() => azure.agents(pool).filter(({ online, version }) => online && version === '5.278.0').length, { timeout: 60_000 })
      .toBe(2);
    expect((await imagesOf(here)).map(({ pools, agent }) => [pools, agent])).toEqual([
      [['ci'], '5.278.0'],
      [[], '5.277.1'],
    ]);
    await daemon.stop();
    expectClean(bench);
  });

  test('can be made by hand with the same Dockerfile', async () => {
    await ensureAzureImages();
    const dir = join((await onejob()).dir, 'by-hand');
    mkdirSync(join(dir, 'agent'), { recursive: true });
    const { file, version } = await packAgent();
    execFileSync('tar', ['-xzf', file, '-C', join(dir, 'agent')]);
    const path = join(import.meta.dirname, '../../src/images/dockerfiles/agent.Dockerfile');
    const tag = `onejob-test/by-hand:${randomBytes(5).toString('hex')}`;
    const args = [
      'build',
      '-q',
      '-t',
      tag,
      '-f',
      path,
      '--build-arg',
      `BASE=${base}`,
      '--build-arg',
      `AGENT_VERSION=${version}`,
      dir,
    ];
    execFileSync('docker', args, { env: { ...process.env, DOCKER_BUILDKIT: '0' }, stdio: ['ignore', 'pipe', 'pipe'] });
    using engine = engineAt();
    const { Config } = (await engine.ok('GET', `/images/${tag}/json`)) as {
      Config: { User: string; Labels: Record<string, string> };
    };
    expect([Config.User, Config.Labels['io.onejob.agent.version'], Config.Labels['io.onejob.owner']]).toEqual([
      '1000',
      version,
      'by-hand',
    ]);
    await engine.ok('DELETE', `/images/${tag}`);
  });
});
