/** The drop-in from end to end: the real `onejob azure`, the real Engine, the stand-in for the service; typed as users of the Python manager type it. */
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { packAgent } from '../standins/azure-devops/agent/pack.ts';
import { type AzureBench, azureBench, expectClean, troubleOf, untilIdle, untilRunning } from '../support/azure.ts';
import { azureImages, ensureAzureImages } from '../support/azure-images.ts';
import { engineTells, filesIn, found, needlesOf, processes } from '../support/azure-secrets.ts';
import { agentsAt, endDropIn, expectGone, namesOf, startDropIn, thingsOf } from '../support/drop-in.ts';
import { card } from '../support/gpu-cards.ts';
import { gpuEngine } from '../support/gpu-hook/gpu-engine.ts';
import { gpuHost } from '../support/gpu-host.ts';
import { call, ensureImages, images } from '../support/images.ts';
import { poolOf } from '../support/look.ts';
import { onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';
import { wayOutOf } from '../support/veth.ts';

const patience = 90_000;

describe.skipIf(lacks('docker', 'busybox', 'root'))('onejob azure', () => {
  test('takes the command line of the Python manager, and does what that did', async () => {
    await using bench = await azureBench();
    const { azure, pool } = bench;
    await using here = await onejob();
    for (const name of ['one', 'two', 'three']) {
      mkdirSync(join(here.cwd, name));
      writeFileSync(join(here.cwd, name, 'file'), `data of ${name}\n`);
    }
    const volumes = ['--volume', 'one:/data/one:ONE', `${join(here.cwd, 'two')}:/data/two:TWO`, '--volume', 'three:/data/three:ro'];
    const options = ['-n', '2', '--name', 'box', '-d', azureImages.agent, '--timeout', '10', '--poll-time', '60'];
    const child = await startDropIn(here, [azure.pat, azure.url, 'gpu', ...options, ...volumes]);
    await untilIdle(bench, 2, patience);
    const { owner } = await here.api.status();
    const look = ['ONE', 'TWO', 'ro'].map(
      (name) => `echo "$${name} has $(cat $${name}/file)"; touch $${name}/new || echo "$${name} is kept"`,
    );
    const script = [...look, 'echo "score $(cat /proc/self/oom_score_adj)"'].join('\n');
    const results = await Promise.all([1, 2, 3, 4].map(() => azure.queue(pool, { script }).finished));
    const says = ['one', 'two', 'three'].flatMap((name) => [`/data/${name} has data of ${name}`, `/data/${name} is kept`]);
    for (const { result, log } of results) {
      expect(result).toBe('succeeded');
      for (const line of [...says, 'score 1000']) expect(log).toContain(line);
    }
    // As the Python manager named them, and then what keeps a name from ever coming back.
    const names = namesOf(bench);
    expect(new Set(names).size).toBe(4);
    for (const name of names) expect(name).toMatch(new RegExp(`^box_[01]-${owner.slice(0, 8)}-[0-9a-f]{10}$`));
    expect(child.stderr).toContain('--timeout has no effect');
    expect(child.stderr).toContain('2 agents without GPUs');
    await untilIdle(bench, 2, patience);
    expect(new Set(agentsAt(bench).flatMap(({ name, online }) => (online ? [name.slice(0, 5)] : [])))).toEqual(
      new Set(['box_0', 'box_1']),
    );
    await endDropIn(child);
    await expectGone(bench, owner);
    expectClean(bench);
  });

  test('SIGTERM ends the agents and a running job, and leaves nothing but the placeholder', async () => {
    await using bench = await azureBench();
    const { azure, pool } = bench;
    await using here = await onejob();
    const child = await startDropIn(here, [azure.pat, azure.url, 'gpu', '-n', '2', '--name', 'box', '-d', azureImages.agent]);
    await untilIdle(bench, 2, patience);
    const { owner } = await here.api.status();
    expect((await thingsOf(owner)).length).toBeGreaterThan(2);
    const job = azure.queue(pool, { script: 'sleep 600' });
    await untilRunning(job, patience);
    await endDropIn(child, 'SIGTERM');
    expect((await job.finished).result).toBe('canceled');
    await expectGone(bench, owner);
    expectClean(bench);
  });

  test('an image made for the Python manager runs jobs, and the token stays out of the container', async () => {
    await using bench = await azureBench();
    const { azure, pool } = bench;
    await using here = await onejob();
    const child = await startDropIn(here, [azure.pat, azure.url, 'gpu', '-n', '1', '-d', azureImages.seed]);
    await untilIdle(bench, 1, patience);
    const { owner } = await here.api.status();
    // Cut in two, as the job's script is in files of the agent's too; that the search sees is shown by the agent's own key.
    const cut = ({ bytes }: { bytes: Buffer }) => `-e '${bytes.toString().slice(0, 30)}''${bytes.toString().slice(30)}'`;
    const needles = needlesOf('the PAT', azure.pat);
    const where = '/proc/[0-9]*/environ /proc/[0-9]*/cmdline /azp /opt /tmp /home /root /etc /workspace';
    const search = (what: string) => `grep -rlF ${what} ${where} </dev/null 2>/dev/null`;
    const script = [
      'echo "user $(id -u) in $(pwd)"',
      ...[search(`-e '"inver''seQ"'`), search(needles.map(cut).join(' '))].map((line, n) => `${line} | sed 's/^/found ${n} /'`),
      'sleep 2',
      'echo looked',
    ].join('\n');
    const job = azure.queue(pool, { script });
    await untilRunning(job, patience);
    const told = [...(await engineTells(owner, azureImages.seed)), ...processes()];
    const { result, log } = await job.finished;
    expect({ result, log }).toEqual({ result: 'succeeded', log: expect.stringContaining('looked') });
    expect(log).toContain('user 0 in /azp');
    expect(log).toContain('found 0 /azp/.credentials_rsaparams');
    expect(log).not.toContain('found 1');
    expect(found(needles, told)).toEqual([]);
    await endDropIn(child);
    await expectGone(bench, owner);
    expectClean(bench);
  });

  test('an image with nothing but a start script has it run as that manager did, with a warning', async () => {
    await using bench = await azureBench();
    const { azure, pool } = bench;
    await azure.addPackage(await packAgent());
    await using here = await onejob();
    const child = await startDropIn(here, [azure.pat, azure.url, 'gpu', '-n', '1', '--name', 'box', '-d', azureImages.startOnly]);
    await untilIdle(bench, 1, patience);
    expect(child.stdout).toContain('its start script gets the token, which jobs can read');
    const { owner } = await here.api.status();
    for (let n = 0; n < 2; n++) expect((await azure.queue(pool, { script: 'echo hello' }).finished).result).toBe('succeeded');
    for (const name of namesOf(bench)) expect(name).toMatch(/^box_0-/);
    await untilIdle(bench, 1, patience);
    // Jobs can read it, and it is among the arguments of the image's own config.sh, but the Engine's books and log do not show it.
    const told = (await engineTells(owner, azureImages.startOnly)).filter(([path]) => !path.endsWith('/top'));
    expect(found(needlesOf('the PAT', azure.pat), told)).toEqual([]);
    expect(found(needlesOf('the PAT', azure.pat), [['output', child.stdout + child.stderr]])).toEqual([]);
    await endDropIn(child);
    await expectGone(bench, owner);
  });

  test('an image with neither agent nor start script is told of with what to do, and not tried without end', async () => {
    await ensureImages();
    await using bench = await azureBench();
    const { azure, pool } = bench;
    await using here = await onejob();
    const child = await startDropIn(here, [azure.pat, azure.url, 'gpu', '-n', '1', '-d', images.base]);
    const why = /its image has neither an agent nor a start script of its own in \/azp or \/\..*Let onejob build the image/;
    await expect.poll(() => troubleOf(here, 'azure'), { timeout: patience }).toMatch(why);
    expect(child.stdout).toMatch(why);
    const { backoff } = await poolOf(here, 'azure');
    await sleep(3_000);
    expect((await poolOf(here, 'azure')).backoff?.failures).toBe(backoff?.failures);
    await endDropIn(child);
    expect(azure.agents(pool)).toEqual([]);
  });

  test('with the token on the command line: a warning, and once it runs nobody can read it there or anywhere else', async () => {
    await using bench = await azureBench();
    const { azure, pool } = bench;
    await using here = await onejob();
    const child = await startDropIn(here, [azure.pat, azure.url, 'gpu', '-n', '1', '-d', azureImages.agent]);
    await untilIdle(bench, 1, patience);
    expect((await azure.queue(pool).finished).result).toBe('succeeded');
    expect(child.stderr).toContain('warning: the token was on the command line');
    const told = ['cmdline', 'environ', 'comm'].map((file): [string, Buffer] => [file, readFileSync(`/proc/${child.pid}/${file}`)]);
    expect(told[0]?.[1].toString().replaceAll('\0', ' ').trim()).toBe('onejob azure');
    const needles = needlesOf('the PAT', azure.pat);
    expect(found(needles, [...told, ...filesIn(here.dir), ['output', child.stdout + child.stderr]])).toEqual([]);
    await endDropIn(child);
    expect(found(needles, filesIn(here.dir))).toEqual([]);
    expectClean(bench);
  });
});

/** What each of `count` jobs at the same time sees of cards, sorted. */
async function seenCards({ azure, pool }: AzureBench, count: number): Promise<string[][]> {
  const script = 'echo "cards=$NVIDIA_VISIBLE_DEVICES nodes=$(ls /dev | grep -c "^nvidia[0-9]")."; sleep 5';
  const jobs = Array.from({ length: count }, () => azure.queue(pool, { script }));
  for (const job of jobs) await untilRunning(job, patience);
  const ended = await Promise.all(jobs.map(({ finished }) => finished));
  return ended.map(({ log }) => {
    const [, uuids = '', nodes] = /cards=(\S*) nodes=(\d+)\./.exec(log) ?? [];
    expect(Number(nodes)).toBe(uuids.split(',').length);
    return uuids.split(',').sort();
  });
}

describe.skipIf(lacks('docker', 'dockerd', 'busybox', 'root'))('cards of onejob azure', () => {
  test('-n 2 on four cards: two each, in an image that onejob builds when none is named', async () => {
    const cards = Array.from({ length: 4 }, (_, n) => card(n));
    // An Engine of its own that grants them, and the service where its containers reach it.
    await using gpus = await gpuEngine({ cards });
    const { engine } = gpus;
    await using bench = await azureBench({ publicHost: wayOutOf(engine) });
    using host = gpuHost(cards);
    const { azure } = bench;
    await azure.addPackage(await packAgent());
    // What would be pulled for these cards and their driver.
    await ensureAzureImages(engine.socket);
    const as = new URLSearchParams({ repo: 'nvidia/cuda', tag: '13.0.3-devel-ubuntu24.04' });
    expect((await call(engine.socket, 'POST', `/images/${azureImages.base}/tag?${as}`)).status).toBe(201);
    await using here = await onejob({ env: { ...host.env, DOCKER_HOST: engine.url }, engine: engine.socket });
    const child = await startDropIn(here, [azure.pat, azure.url, 'gpu', '-n', '2', '--name', 'box']);
    expect(child.stderr).toContain(
      '2 agents on 4 cards: each agent has 2 to itself. The Python manager showed every agent every card.',
    );
    await untilIdle(bench, 2, 180_000);
    const { owner } = await here.api.status();
    const seen = await seenCards(bench, 2);
    expect(seen.map(({ length }) => length)).toEqual([2, 2]);
    expect(seen.flat().sort()).toEqual(cards.map(({ uuid }) => uuid));
    await endDropIn(child);
    await expectGone(bench, owner, engine.socket);
    expectClean(bench);
  });
});
