/**
 * Two pools, one of them with an agent per card, run jobs of Azure Pipelines on a real Engine while agents crash, vanish and are
 * ended by the kernel, the service has faults of all kinds, and the manager is killed again and again, once with another image for
 * the next one. Nothing is lost, nothing runs twice, nothing is left on either side. The simulator's scenarios azure-kills,
 * azure-each-effect, azure-two-hundred and azure-bad-agents have the many seeds and all boundaries.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import type { Fault, FaultWhere, QueuedJob } from '../standins/azure-devops/standin.ts';
import { azureBench, expectClean, isPlaceholder } from '../support/azure.ts';
import { azureImages } from '../support/azure-images.ts';
import { dice } from '../support/dice.ts';
import { card } from '../support/gpu-cards.ts';
import { gpuEngine } from '../support/gpu-hook/gpu-engine.ts';
import { gpuHost } from '../support/gpu-host.ts';
import { onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';
import { wayOutOf } from '../support/veth.ts';

const count = 60;

/** Each once, at some request of the manager's, or of an agent's. */
const faults: readonly (readonly [Fault, FaultWhere])[] = [
  [{ kind: 'broken' }, { identity: 'pat' }],
  [{ kind: 'reset' }, { identity: 'pat' }],
  [{ kind: 'lost' }, { identity: 'pat' }],
  [{ kind: 'lost' }, { identity: 'pat', method: 'POST', route: 'agents' }],
  [{ kind: 'lost' }, { identity: 'pat', method: 'DELETE', route: 'agents/{agentId}' }],
  [{ kind: 'broken' }, { identity: 'pat', method: 'DELETE', route: 'agents/{agentId}' }],
  [{ kind: 'garbage' }, { identity: 'pat', method: 'GET' }],
  [{ kind: 'delay', ms: 1_000 }, { identity: 'pat' }],
  [{ kind: 'throttled', retryAfter: 1 }, { identity: 'pat' }],
  [{ kind: 'broken' }, { identity: 'agent' }],
  [{ kind: 'reset' }, { identity: 'agent', route: 'messages' }],
  [{ kind: 'delay', ms: 500 }, { identity: 'job' }],
];

interface Given {
  readonly job: QueuedJob;
  readonly needsCard: boolean;
  /** Its agent ends without a word. */
  readonly isDoomed: boolean;
}

describe.skipIf(lacks('docker', 'dockerd', 'busybox', 'root'))('Azure Pipelines', () => {
  test(`runs ${count} jobs in two pools through faults and kills, and nothing is lost or left`, async () => {
    const cards = [card(0), card(1)];
    await using gpus = await gpuEngine({ cards });
    const { engine } = gpus;
    await using bench = await azureBench({ publicHost: wayOutOf(engine), lockMs: 9_000, sessionMs: 6_000 });
    for (const image of [azureImages.agent, azureImages.seed]) await engine.load(image);
    const { azure, pool } = bench;
    using host = gpuHost(cards);
    const perCard = `  cards: { service: azure, queue: gpu, agents: per-device, devices: 1, runtime: docker, image: "${azureImages.agent}", memory: 96MiB, stop_grace: 2s }`;
    const config = (image: string) => bench.config({ agents: 2, pool: 'memory: 96MiB', pools: perCard, image });
    await using here = await onejob({
      config: config(azureImages.agent),
      env: { ...host.env, DOCKER_HOST: engine.url },
      engine: engine.socket,
    });
    const begun = new Map<number, number>();
    azure.on((event) => {
      if (event.kind !== 'requestReceived') return;
      const { requestId } = event.request;
      begun.set(requestId, (begun.get(requestId) ?? 0) + 1);
    });
    let daemon = await here.up();
    await expect.poll(() => azure.agents(pool).filter(({ name }) => isPlaceholder(name)).length, { timeout: 30_000 }).toBe(2);

    const random = dice();
    const pick = (below: number): number => Math.floor(random() * below);
    const given: Given[] = [];
    let kills = 0;
    let lastKill = Date.now();
    while (given.length < count) {
      const open = given.filter(({ job }) => job.view().result === null).length;
      for (let n = open; n < 10 && given.length < count; n++) {
        const needsCard = pick(3) === 0;
        const isDoomed = pick(12) === 0;
        const how = isDoomed ? `# standin-agent: ${['crash', 'vanish', 'eat-memory'][given.length % 3]}\n` : '';
        const demands = needsCard ? [['gpu.count'], ['cuda', 'gpu.model -equals NVIDIA H100 80GB HBM3']][pick(2)] : [];
        const job = azure.queue(pool, { script: `${how}echo "cards: $NVIDIA_VISIBLE_DEVICES"`, demands: demands ?? [] });
        given.push({ job, needsCard, isDoomed });
      }
      const [fault, where] = faults[pick(faults.length * 3)] ?? [];
      if (fault !== undefined) azure.faults.add(fault, { ...where, times: 1 });
      await sleep(300 + pick(500));
      if (Date.now() - lastKill < 6_000 + pick(4_000)) continue;
      await daemon.kill();
      here.configure(config(kills === 1 ? azureImages.seed : azureImages.agent));
      daemon = await here.up();
      kills += 1;
      lastKill = Date.now();
    }
    azure.faults.clear();
    const results = await Promise.all(given.map(({ job }) => job.finished));
    expect(kills).toBeGreaterThan(2);
    expect(given.filter(({ job }) => job.view().failedAtQueue)).toEqual([]);
    expect([...begun.values()].filter((times) => times !== 1)).toEqual([]);
    expect(begun.size).toBe(count);
    const wrong = given.filter(({ isDoomed }, at) => results[at]?.result !== (isDoomed ? 'abandoned' : 'succeeded'));
    expect(wrong.map(({ job }) => job.view())).toEqual([]);
    for (const [at, { job, needsCard, isDoomed }] of given.entries()) {
      const inPool = /^onejob-(ci|cards)|-(ci|cards)-|^(ci|cards)/.exec(job.view().agent?.name ?? '')?.[0] ?? '';
      if (needsCard) expect(inPool, job.view().agent?.name).toContain('cards');
      if (needsCard && !isDoomed) expect(results[at]?.log).toMatch(/cards: GPU-5eed/);
    }
    // Two jobs of the same card never at the same time: each agent has one card, and both cards were used.
    const used = new Set(results.flatMap(({ log }) => /cards: (GPU-\S+)/.exec(log)?.[1] ?? []));
    expect([...used].sort()).toEqual(cards.map(({ uuid }) => uuid));
    // Entries that DELETE was refused for, as their agent had vanished with a job.
    const agents = given.map(({ job }) => job.view().agent?.name ?? '');
    await expect.poll(() => bench.left().filter((name) => agents.includes(name)), { timeout: 60_000 }).toEqual([]);
    await daemon.stop();
    expectClean(bench);
    expect((await here.census()).left).toEqual([]);
  });
});
