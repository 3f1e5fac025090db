/**
 * Who gets which card when pools are paused, renamed, or lease in another way. What faults, people and other managers do to leases is the
 * simulator's, in its scenarios gpu-leases, gpu-neighbours and gpu-bad-days.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { card, type StubGpu } from '../support/gpu-cards.ts';
import { gpuHost } from '../support/gpu-host.ts';
import { finish, gpuHome, hold, running, see } from '../support/gpu-jobs.ts';
import { standbyOf } from '../support/look.ts';
import { lacks } from '../support/require.ts';

const cards = (count: number): StubGpu[] => Array.from({ length: count }, (_, n) => card(n));
const uuidOf = (n: number): string => card(n).uuid;
const passing = { standby: false };

describe.skipIf(lacks('bubblewrap', 'root'))('leases', () => {
  test('a pool that may start nothing keeps no card from others, and leases one as soon as it may', async () => {
    using host = gpuHost(cards(1));
    await using here = await gpuHome(host, {
      one: { agents: 1, devices: 1, ...passing },
      two: { agents: 1, devices: 1, ...passing },
    });
    await here.up();
    await here.api.pause('one', 'its owner looks at it');
    const late = await hold(here, 'one');
    expect((await see(here, 'two')).cards).toEqual([uuidOf(0)]);
    await here.api.resume('one', 'its owner looks at it');
    expect(await running(here, late)).toEqual([uuidOf(0)]);
    await finish(late);
  });

  test('a pool that begins to lease for each job gives the card of its standby to another pool that waits', async () => {
    using host = gpuHost(cards(1));
    const two = { agents: 1, devices: 1, ...passing };
    await using here = await gpuHome(host, { one: { agents: 1, devices: 1 }, two });
    await here.up();
    await expect.poll(() => standbyOf(here, 'one/1')).toEqual(expect.any(String));
    const waits = await hold(here, 'two');
    await expect.poll(async () => (await here.api.job(waits.id)).reason).toMatch(/no device is free/);
    const written = JSON.parse(readFileSync(join(here.dir, 'config.yml'), 'utf8'));
    Object.assign(written.pools.one, passing);
    here.configure(JSON.stringify(written));
    await here.api.call('POST /v1/config/apply', { body: { dryRun: false } });
    expect(await running(here, waits)).toEqual([uuidOf(0)]);
    await finish(waits);
  });

  test('a pool of another name waits for the job that the old one still has on its card', async () => {
    using host = gpuHost(cards(1));
    await using here = await gpuHome(host, { old: { agents: 1, devices: 1 } });
    const daemon = await here.up();
    const job = await hold(here, 'old');
    await running(here, job);
    await daemon.kill();
    const volumes = [`${here.dir}/go:/go`];
    here.configure(JSON.stringify({ pools: { fresh: { runtime: 'process', agents: 1, devices: 1, volumes } } }));
    await here.up();
    const next = await hold(here, 'fresh');
    await expect.poll(async () => (await here.api.job(next.id)).reason).toMatch(/no device is free/);
    expect((await here.api.job(job.id)).state).toBe('running');
    await finish(job);
    expect(await running(here, next)).toEqual([uuidOf(0)]);
    await finish(next);
  });
});
