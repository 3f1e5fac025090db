/** Devices of Buildkite's agents: an agent of several cards beside those of one, on a host that is acted out. */
import { describe, expect, test } from 'vitest';
import { buildkiteBench } from '../support/buildkite.ts';
import { endOf, theAgent, untilSays } from '../support/buildkite-days.ts';
import { untilAsking } from '../support/buildkite-host.ts';
import { card } from '../support/gpu-cards.ts';
import { gpuHost } from '../support/gpu-host.ts';
import { onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

describe.skipIf(lacks('bubblewrap', 'root', 'buildkiteAgent'))('devices', () => {
  test('of an agent with two cards and of those with one overlap never, whatever is asked for', async () => {
    using host = gpuHost([0, 1, 2, 3].map((n) => card(n)));
    // Jobs in processes do not reach other addresses of this host.
    await using bench = await buildkiteBench(theAgent(), { publicHost: '127.0.0.1' });
    const { buildkite } = bench;
    const rest = 'service: bk, runtime: process, stop_grace: 1s, trust: { forks: refuse, others: refuse }';
    const config = bench.config({
      agents: 2,
      pool: 'name: "one.{n}", runtime: process, stop_grace: 1s, trust: { forks: refuse, others: refuse }, devices: 1, tags: { cap: [sm_75, recent] }',
      pools: `  pair: { ${rest}, queue: default, agents: 1, name: two, devices: 2, tags: "cap=sm_75,multigpu", volumes: ["@"] }`,
    });
    const [, gate = ''] = /volumes: \["([^"]+)"/.exec(config) ?? [];
    await using here = await onejob({
      config: config.replace(/image: "[^"]*", /, '').replaceAll('"@"', `"${gate}"`),
      env: host.env,
    });
    const daemon = await here.up();
    await untilAsking(bench);
    const cards = new Map<string, string[]>();
    const jobs = ['multigpu', 'cap=sm_75', 'cap=recent'].map((rule, n) =>
      buildkite.queueJob({
        rules: [rule],
        command: `echo "cards=$CUDA_VISIBLE_DEVICES"; echo began; until [ -e /go/${n} ]; do sleep 0.1; done`,
      }),
    );
    for (const id of jobs) {
      await untilSays(bench, id, /^began$/m);
      const { agent, log } = buildkite.job(id);
      cards.set(agent?.name ?? '', /^cards=(.+)$/m.exec(log)?.[1]?.split(',') ?? []);
    }
    expect([...cards].map(([name, { length }]) => `${name}: ${length}`).sort()).toEqual(['one.1: 1', 'one.2: 1', 'two: 2']);
    expect(new Set([...cards.values()].flat()).size).toBe(4);
    for (const n of jobs.keys()) bench.go(String(n));
    for (const id of jobs) expect((await buildkite.jobEnded(id)).exit).toBe(0);
    await endOf({ bench, here, [Symbol.asyncDispose]: async () => {} }, daemon);
  });
});
