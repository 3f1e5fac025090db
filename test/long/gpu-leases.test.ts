/** Who gets which card when something stands in the way: a card of several, shared ones, another config, people, a blind start. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { card, type StubGpu } from '../support/gpu-cards.ts';
import { gpuHost } from '../support/gpu-host.ts';
import { bystander, device, finish, gpuHome, hold, running, see } from '../support/gpu-jobs.ts';
import { poolOf, slotOf, standbyOf } from '../support/look.ts';
import { lacks } from '../support/require.ts';

const cards = (count: number): StubGpu[] => Array.from({ length: count }, (_, n) => card(n));
const uuidOf = (n: number): string => card(n).uuid;
const passing = { standby: false };

describe.skipIf(lacks('bubblewrap', 'root'))('leases', () => {
  test('a slot with two cards gives up only the one that is at fault', async () => {
    using host = gpuHost(cards(4));
    await using here = await gpuHome(host, { pair: { agents: 1, devices: 2 }, single: { agents: 1, devices: 1 } });
    await here.up();
    const [job, other] = [await hold(here, 'pair'), await hold(here, 'single')];
    expect([...(await running(here, job))].sort()).toEqual([uuidOf(0), uuidOf(1)]);
    expect(await running(here, other)).toEqual([uuidOf(2)]);
    host.change(0, { eccErrors: 1 });
    await finish(job);
    expect([...(await see(here, 'pair')).cards].sort()).toEqual([uuidOf(1), uuidOf(3)]);
    expect((await device(here, uuidOf(1)))?.state).toBe('leased');
    await finish(other);
  });

  test('a card that is shared is proved beside those who use it, and is put away for all of them', async () => {
    using host = gpuHost(cards(1));
    await using here = await gpuHome(host, { shared: { agents: 2, devices: { count: 1, share: 2 } } });
    await here.up();
    const jobs = [await hold(here, 'shared'), await hold(here, 'shared')];
    for (const job of jobs) expect(await running(here, job)).toEqual([uuidOf(0)]);
    const [first, second] = jobs;
    if (first === undefined || second === undefined) throw new Error('no jobs');
    await finish(first);
    expect((await see(here, 'shared')).cards).toEqual([uuidOf(0)]);
    const third = await hold(here, 'shared');
    await running(here, third);
    host.kernel('Xid (PCI:0000:1a:00): 95, pid=4242, name=python, Uncontained');
    await finish(second);
    await expect.poll(async () => (await device(here, uuidOf(0)))?.state).toBe('quarantined');
    expect((await here.api.job(third.id)).state).toBe('running');
    await finish(third);
    const next = await hold(here, 'shared');
    expect(await here.api.job(next.id)).toMatchObject({ state: 'queued', reason: expect.stringMatching(/in quarantine/) });
    await here.api.cancel(next.id);
  });

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

  test('a job that leases at its start takes the card that nobody is on, and one that needs both keeps nothing from others', async () => {
    using host = gpuHost(cards(2));
    await using person = bystander();
    host.change(0, { usedMiB: 900, processes: [{ pid: person.pid, memoryMiB: 890 }] });
    const pools = { one: { agents: 2, devices: 1, ...passing }, two: { agents: 1, devices: 2, ...passing } };
    await using here = await gpuHome(host, pools);
    await here.up();
    const both = await hold(here, 'two');
    for (let n = 0; n < 3; n++) expect((await see(here, 'one')).cards).toEqual([uuidOf(1)]);
    expect((await here.api.job(both.id)).state).toBe('queued');
    await person[Symbol.asyncDispose]();
    host.change(0, { usedMiB: 1, processes: [] });
    expect([...(await running(here, both))].sort()).toEqual([uuidOf(0), uuidOf(1)]);
    await finish(both);
  });

  test('a manager that was killed keeps its cards from another one for as long as its jobs run', async () => {
    using host = gpuHost(cards(2));
    await using here = await gpuHome(host, { a: { agents: 1, devices: 1 } });
    const first = await here.up();
    const job = await hold(here, 'a');
    expect(await running(here, job)).toEqual([uuidOf(0)]);
    await first.kill();
    await using there = await gpuHome(host, { b: { agents: 'per-device', devices: 1 } });
    await there.up();
    expect((await see(there, 'b')).cards).toEqual([uuidOf(1)]);
    expect(await device(there, uuidOf(0))).toMatchObject({ state: 'elsewhere', why: expect.stringContaining(here.stateDir) });
    const next = await here.up();
    await finish(job);
    await next.stop();
    await see(there, 'b');
    await expect.poll(async () => (await device(there, uuidOf(0)))?.state).toBe('leased');
  });

  test('a manager that starts blind keeps what it knows: its slot waits for its own card without failing', async () => {
    using host = gpuHost(cards(2));
    await using here = await gpuHome(host, { gpu: { agents: 1, devices: 1 }, rest: { agents: 1, devices: 1 } });
    const first = await here.up();
    expect((await see(here, 'gpu')).cards).toEqual([uuidOf(0)]);
    await first.stop();
    host.tool('error-text');
    await here.up();
    const job = await hold(here, 'gpu');
    await expect.poll(async () => (await here.api.job(job.id)).reason).toMatch(new RegExp(`${uuidOf(0)} is unknown`));
    expect((await poolOf(here, 'gpu')).backoff).toBeNull();
    expect((await here.cli(['status']).ended).code).toBe(0);
    host.tool('ok');
    expect(await running(here, job)).toEqual([uuidOf(0)]);
    await finish(job);
  });

  test('an idle standby is left alone by looks that fail, and by a manager that was killed', async () => {
    using host = gpuHost(cards(1));
    await using here = await gpuHome(host, { gpu: { agents: 1, devices: 1 } });
    const first = await here.up();
    await expect.poll(() => standbyOf(here, 'gpu/1')).not.toBeNull();
    const standby = await standbyOf(here, 'gpu/1');
    host.tool('exit 9');
    await first.kill();
    await here.up();
    await expect.poll(async () => (await poolOf(here, 'gpu')).paused.join()).toMatch(/driver/i);
    expect(await standbyOf(here, 'gpu/1')).toBe(standby);
    host.tool('ok');
    const job = await hold(here, 'gpu');
    await running(here, job);
    expect((await slotOf(here, 'gpu/1')).agent.agent).toBe(standby);
    await finish(job);
  });
});
