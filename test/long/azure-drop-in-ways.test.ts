/** What the drop-in is given in other ways: the token, the image, the cards of the host, and a config file instead of it all. */
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { packAgent } from '../standins/azure-devops/agent/pack.ts';
import { type AzureBench, azureBench, expectClean, untilIdle, untilRunning } from '../support/azure.ts';
import { azureImages, ensureAzureImages } from '../support/azure-images.ts';
import { filesIn, found, needlesOf } from '../support/azure-secrets.ts';
import type { Child } from '../support/child.ts';
import { agentsAt, endDropIn, expectGone, namesOf, startDropIn } from '../support/drop-in.ts';
import { card } from '../support/gpu-cards.ts';
import { type GpuEngine, gpuEngine } from '../support/gpu-hook/gpu-engine.ts';
import { gpuHost } from '../support/gpu-host.ts';
import { call } from '../support/images.ts';
import { onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';
import { wayOutOf } from '../support/veth.ts';

const patience = 90_000;

describe.skipIf(lacks('docker', 'busybox', 'root'))('the token of onejob azure', () => {
  test('on the command line: a warning, and once it runs nobody can read it there or anywhere else', async () => {
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

  test('a file that is printed and led with "up" does the same', async () => {
    await using bench = await azureBench();
    const { azure, pool, tokenFile } = bench;
    await using here = await onejob();
    mkdirSync(join(here.cwd, 'data'));
    writeFileSync(join(here.cwd, 'data', 'file'), 'some data\n');
    const typed = [
      `@${tokenFile}`,
      azure.url,
      'gpu',
      '-n',
      '2',
      '--name',
      'box',
      '-d',
      azureImages.agent,
      '--volume',
      'data:/data:DATA',
    ];
    const script = 'cat $DATA/file; touch $DATA/new || echo kept; cat /proc/self/oom_score_adj';
    const sees = async () => {
      await untilIdle(bench, 2, patience);
      // Before the job: after it one leaves as the next one comes.
      const names = agentsAt(bench).flatMap(({ name, online }) => (online ? [name.slice(0, 5)] : []));
      const { result, log } = await azure.queue(pool, { script }).finished;
      const words = ['some data', 'kept', '1000'].filter((word) => log.includes(word));
      return { result, words, names: [...new Set(names)].sort() };
    };
    const child = await startDropIn(here, typed);
    const before = await sees();
    expect(before).toEqual({ result: 'succeeded', words: ['some data', 'kept', '1000'], names: ['box_0', 'box_1'] });
    await endDropIn(child);

    const printed = await here.cli(['azure', ...typed, '--print-config']).ended;
    expect(printed.code).toBe(0);
    const file = join(here.dir, 'printed.yml');
    writeFileSync(file, printed.stdout);
    const daemon = await here.up('--config', file);
    expect(await sees()).toEqual(before);
    await daemon.stop();
    for (const name of namesOf(bench)) expect(name).toMatch(/^box_[01]-/);
    expectClean(bench);
  });
});

/** A host with cards and an Engine of its own that grants them, and the service where its containers reach it. */
async function cardHost(count: number) {
  const cards = Array.from({ length: count }, (_, n) => card(n));
  const stack = new AsyncDisposableStack();
  const gpus: GpuEngine = stack.use(await gpuEngine({ cards }));
  const { engine } = gpus;
  const bench: AzureBench = stack.use(await azureBench({ publicHost: wayOutOf(engine) }));
  const host = stack.use(gpuHost(cards));
  const env = { ...host.env, DOCKER_HOST: engine.url };
  return { engine, bench, env, cards: cards.map(({ uuid }) => uuid), [Symbol.asyncDispose]: () => stack.disposeAsync() };
}

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

async function ends(child: Child, bench: AzureBench, owner: string, socket: string): Promise<void> {
  await endDropIn(child);
  await expectGone(bench, owner, socket);
  expectClean(bench);
}

describe.skipIf(lacks('docker', 'dockerd', 'busybox', 'root'))('cards of onejob azure', () => {
  test('-n 2 on four cards: two each, in an image that onejob builds when none is named', async () => {
    await using there = await cardHost(4);
    const { bench, engine, cards } = there;
    const { azure } = bench;
    await azure.addPackage(await packAgent());
    // What would be pulled for these cards and their driver.
    await ensureAzureImages(engine.socket);
    const as = new URLSearchParams({ repo: 'nvidia/cuda', tag: '13.0.3-devel-ubuntu24.04' });
    expect((await call(engine.socket, 'POST', `/images/${azureImages.base}/tag?${as}`)).status).toBe(201);
    await using here = await onejob({ env: there.env, engine: engine.socket });
    const child = await startDropIn(here, [azure.pat, azure.url, 'gpu', '-n', '2', '--name', 'box']);
    expect(child.stderr).toContain(
      '2 agents on 4 cards: each agent has 2 to itself. The Python manager showed every agent every card.',
    );
    await untilIdle(bench, 2, 180_000);
    const { owner } = await here.api.status();
    const seen = await seenCards(bench, 2);
    expect(seen.map(({ length }) => length)).toEqual([2, 2]);
    expect(seen.flat().sort()).toEqual(cards);
    await ends(child, bench, owner, engine.socket);
  });
});
