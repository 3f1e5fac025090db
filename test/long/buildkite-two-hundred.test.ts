/**
 * Two pools, one of them with an agent per card, run 200 jobs of the real buildkite-agent, a quarter of them of forks, against the
 * stand-in on a real Engine, while the service has faults of all kinds, the manager and the filter are killed again and again, and
 * sandboxes under their jobs. Nothing is lost, nothing runs twice, nothing is left on either side.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import type { Fault, FaultWhere } from '../standins/buildkite/standin.ts';
import { buildkiteBench, onlyAtTheEnd } from '../support/buildkite.ts';
import { connected, containerOf, filterPid, fork, killFilter, theAgent } from '../support/buildkite-days.ts';
import { untilAsking } from '../support/buildkite-host.ts';
import { card } from '../support/gpu-cards.ts';
import { gpuEngine } from '../support/gpu-hook/gpu-engine.ts';
import { gpuHost } from '../support/gpu-host.ts';
import { slotOf } from '../support/look.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';
import { wayOutOf } from '../support/veth.ts';

const count = 200;
const image = 'debian:stable-slim';
const slots = ['ci/1', 'ci/2', 'cards/1', 'cards/2'];

/** Each once, at some request of the manager's, of an agent's or of a job's. */
const faults: readonly (readonly [Fault, FaultWhere])[] = [
  [{ kind: 'error', status: 500 }, {}],
  [{ kind: 'error', status: 503 }, { token: 'registration' }],
  // An agent that speaks to the service itself drops a chunk that is answered with any 4xx.
  [{ kind: 'error', status: 429, retryAfter: 1 }, { token: 'registration' }],
  [{ kind: 'reset' }, {}],
  [{ kind: 'reset' }, { token: 'job' }],
  [{ kind: 'lost' }, { route: 'stacks/:key/scheduled-jobs' }],
  [{ kind: 'lost' }, { route: 'connect' }],
  [{ kind: 'lost' }, { route: 'disconnect' }],
  [{ kind: 'lost' }, { route: 'jobs/:id/start' }],
  [{ kind: 'lost' }, { route: 'jobs/:id/chunks' }],
  [{ kind: 'lost' }, { route: 'jobs/:id/finish' }],
  [{ kind: 'doubled' }, { route: 'jobs/:id/chunks' }],
  [{ kind: 'garbage' }, { route: 'stacks/:key/scheduled-jobs' }],
  [{ kind: 'lost' }, { route: 'stacks/:key/scheduled-jobs/batch-reserve' }],
  [{ kind: 'reset' }, { route: 'stacks/:key/job-acquisition-tokens' }],
  [{ kind: 'delay', ms: 800 }, {}],
  [{ kind: 'error', status: 422 }, { route: 'jobs/:id/acquire' }],
];

/** The same numbers for the same seed. */
function random(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

/** Kills the sandbox of a slot under its job; answers with the job's id, null when it had none. */
async function killSandbox(
  here: Home,
  engine: { readonly socket: string; readonly api: Api },
  key: string,
): Promise<string | null> {
  try {
    const { job } = (await slotOf(here, key)).agent;
    if (job === null) return null;
    await engine.api.ok('POST', `/containers/${await containerOf(here, key, engine.socket)}/kill`);
    return job;
  } catch {
    // It has just ended.
    return null;
  }
}

interface Api {
  ok(method: string, path: string): Promise<unknown>;
}

describe.skipIf(lacks('docker', 'image', 'dockerd', 'root', 'buildkiteAgent'))('Buildkite', () => {
  test(`runs ${count} jobs in two pools through faults and kills, and nothing is lost or left`, async () => {
    const cards = [card(0), card(1)];
    await using gpus = await gpuEngine({ cards });
    const { engine } = gpus;
    await using bench = await buildkiteBench(theAgent(), { host: '0.0.0.0', publicHost: wayOutOf(engine), lostMs: 30_000 });
    await engine.load(image);
    const { buildkite } = bench;
    using host = gpuHost(cards);
    const perCard = `  cards: { service: bk, queue: default, agents: per-device, devices: 1, image: "${image}", tags: "gpu=h100", stop_grace: 2s }`;
    await using here = await onejob({
      config: bench.config({
        agents: 2,
        pool: 'runtime: docker, stop_grace: 2s',
        pools: perCard.replace('image:', 'runtime: docker, image:'),
      }),
      env: { ...host.env, DOCKER_HOST: engine.url },
      engine: engine.socket,
      // The filter must be where the containers' gateway is.
      through: ['nsenter', `--net=/proc/${engine.pid}/ns/net`],
    });
    let daemon = await here.up();
    await untilAsking(bench);

    const pick = random(5);
    const ids: string[] = [];
    const needsCard = new Set<string>();
    const killed = new Set<string>();
    const kills = { manager: 0, filter: 0 };
    let lastKill = Date.now();
    while (ids.length < count) {
      const open = ids.filter((id) => buildkite.job(id).exit === null).length;
      for (let free = 10 - open; free > 0 && ids.length < count; free--) {
        const onCard = pick(3) === 0;
        const n = ids.length;
        const command = `echo "ran ${n} cards: $NVIDIA_VISIBLE_DEVICES"; sleep 0.${pick(9)}; echo "done ${n}"; exit ${n % 7}`;
        const id = buildkite.queueJob({
          command,
          rules: onCard ? ['gpu=h100'] : [],
          chunksIntervalS: onlyAtTheEnd,
          ...(n % 4 === 3 && fork),
        });
        ids.push(id);
        if (onCard) needsCard.add(id);
      }
      const [fault, where] = faults[pick(faults.length * 3)] ?? [];
      if (fault !== undefined) buildkite.faults.add(fault, { ...where, times: 1 });
      await sleep(200 + pick(400));
      if (pick(12) === 0) {
        const job = await killSandbox(here, engine, slots[pick(4)] ?? 'ci/1');
        if (job !== null) killed.add(job);
      }
      if (Date.now() - lastKill < 7_000 + pick(4_000)) continue;
      lastKill = Date.now();
      const which = pick(3);
      if (which !== 0 && (await killFilter(here))) kills.filter += 1;
      if (which === 1) continue;
      await daemon.kill();
      daemon = await here.up();
      kills.manager += 1;
    }
    buildkite.faults.clear();
    const jobs = await Promise.all(ids.map((id) => buildkite.jobEnded(id)));
    expect(kills.manager + kills.filter).toBeGreaterThan(4);
    expect(kills.filter).toBeGreaterThan(0);

    const wrong = jobs.filter((job, n) => {
      const ran = [...job.log.matchAll(/^(?:ran|done) (\d+)/gm)].map(([line]) => line);
      const whole = job.exit === n % 7 && job.logMissing === 0 && ran.length === 2 && ran.every((line) => line.endsWith(` ${n}`));
      // A sandbox that was killed is reported as such, and at most once begun.
      const reported = killed.has(job.id) && job.exit === -1 && ran.length <= 2;
      // With the answer to its acquisition the job's token is lost, without which nothing can be said of it; its agent leaves.
      const unsaid = job.exit === -1 && ran.length === 0 && /^agent_/.test(job.signalReason ?? '');
      return !whole && !reported && !unsaid;
    });
    expect(
      wrong.map(({ id, exit, signalReason, log, logMissing }) => ({
        id,
        killed: killed.has(id),
        exit,
        signalReason,
        log,
        logMissing,
      })),
    ).toEqual([]);
    const unsure = jobs.filter(({ id, exit }) => exit === -1 && !killed.has(id));
    expect(unsure.length).toBeLessThanOrEqual(4);
    expect(jobs.filter(({ assignments, exit }) => exit !== -1 && assignments < 1)).toEqual([]);
    for (const job of jobs) if (needsCard.has(job.id) && job.exit !== -1) expect(job.log).toMatch(/cards: GPU-5eed/);
    const used = new Set(jobs.flatMap(({ log }) => /cards: (GPU-\S+)/.exec(log)?.[1] ?? []));
    expect([...used].sort()).toEqual(cards.map(({ uuid }) => uuid));

    await daemon.stop();
    await expect.poll(() => filterPid(here), { timeout: 20_000 }).toBe(null);
    // The service takes an agent whose sandbox was killed for lost by itself.
    await expect.poll(() => connected(bench), { timeout: 60_000 }).toEqual([]);
    expect(buildkite.census().jobs).toEqual([]);
    expect(buildkite.requests.filter(({ leaked }) => leaked)).toEqual([]);
    expect((await here.census()).left).toEqual([]);
  });
});
