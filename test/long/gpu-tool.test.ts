/**
 * Bad days of the vendor's tool, acted out: it hangs, complains, stops half-way. What it does not tell is unknown: nothing new
 * gets a card that nobody can see, no running job is touched, CPU pools continue, and all is as before once it answers again.
 */
import { describe, expect, test } from 'vitest';
import { card, type StubGpu } from '../support/gpu-cards.ts';
import { canBeStuck, gpuHost, type ToolMode } from '../support/gpu-host.ts';
import { device, finish, gpuHome, hold, oneOfTwo, outputOf, running, see, stopsSoon } from '../support/gpu-jobs.ts';
import { poolOf, slotOf } from '../support/look.ts';
import { lacks } from '../support/require.ts';

const cards = (count: number): StubGpu[] => Array.from({ length: count }, (_, n) => card(n));
const uuidOf = (n: number): string => card(n).uuid;

describe.skipIf(lacks('bubblewrap', 'root'))('the tool', () => {
  const failures: [ToolMode, RegExp][] = [
    ['exit 9', /driver has to be loaded/i],
    ['exit 18', /reboot needed/i],
    ['half-xml', /unknown|not known/i],
    ['error-text', /unknown|not known/i],
  ];
  test.each(failures)('a tool that answers "%s": nothing new on its cards until it answers again', async (mode, words) => {
    using host = gpuHost(cards(2));
    const { here, job } = await oneOfTwo(host);
    await using _home = here;
    host.tool(mode);
    await finish(job);
    const next = await hold(here, 'gpu');
    await expect.poll(async () => JSON.stringify([await poolOf(here, 'gpu'), await here.api.job(next.id)])).toMatch(words);
    expect((await here.api.job(next.id)).state).toBe('queued');
    expect((await see(here, 'cpu')).cards).toEqual([]);
    expect((await here.api.job(next.id)).state).toBe('queued');
    // Nothing is gone for it, and nothing put away.
    expect((await here.api.devices()).map(({ state }) => state)).not.toContain('missing');
    expect((await here.api.devices()).map(({ state }) => state)).not.toContain('quarantined');
    host.tool('ok');
    await expect.poll(() => outputOf(here, next.id), { timeout: 25_000 }).toContain(`cards=${uuidOf(0)}`);
    await finish(next);
  });

  test.each(failures)(
    'a manager that starts while the tool answers "%s": the same, and its cards are its own afterwards',
    async (mode, words) => {
      using host = gpuHost(cards(1));
      await using here = await gpuHome(host, { gpu: { agents: 1, devices: 1 }, cpu: { agents: 1 } });
      host.tool(mode);
      await here.up();
      expect((await see(here, 'cpu')).cards).toEqual([]);
      const next = await hold(here, 'gpu');
      await expect
        .poll(async () => JSON.stringify([await poolOf(here, 'gpu'), await here.api.job(next.id)]))
        .toMatch(mode.startsWith('exit') ? words : /./);
      expect((await here.api.job(next.id)).state).toBe('queued');
      host.tool('ok');
      await expect.poll(() => outputOf(here, next.id), { timeout: 25_000 }).toMatch(/cards=GPU/);
      await finish(next);
    },
  );

  test('half an answer: a card that was idle gets no job before it was seen again', async () => {
    using host = gpuHost(cards(2));
    const only = (n: number) => ({ devices: { count: 1, uuid: uuidOf(n) } });
    await using here = await gpuHome(host, { idle: only(0), other: only(1) });
    await here.up();
    await expect.poll(async () => (await slotOf(here, 'idle/1')).standby.state).toBe('standby');
    const job = await hold(here, 'other');
    await running(here, job);
    host.tool('half-xml');
    await finish(job);
    await expect.poll(async () => (await slotOf(here, 'other/1')).note).toMatch(/unknown/);
    const next = await hold(here, 'idle');
    expect(await here.api.job(next.id)).toMatchObject({
      state: 'queued',
      reason: expect.stringMatching(/unknown: the last check failed/),
    });
    expect((await device(here, uuidOf(0)))?.why).toMatch(/unknown/);
    // Its standby stays, since nothing is known to be wrong.
    expect((await slotOf(here, 'idle/1')).standby.state).toBe('standby');
    host.tool('ok');
    await expect.poll(() => outputOf(here, next.id), { timeout: 15_000 }).toContain(`cards=${uuidOf(0)}`);
    await finish(next);
  });

  const hangs: ToolMode[] = canBeStuck() ? ['hang', 'stuck'] : ['hang'];
  test.each(hangs)(
    'a tool that never ends (%s): the manager and its CPU pools continue, GPU pools wait, jobs run on',
    async (mode) => {
      using host = gpuHost(cards(2));
      const { here, job } = await oneOfTwo(host);
      await using _home = here;
      host.tool(mode);
      await expect.poll(() => host.asked, { timeout: 30_000 }).toBeGreaterThan(1);
      const asked = host.asked;
      for (let n = 0; n < 5; n++) {
        const begun = performance.now();
        expect((await see(here, 'cpu')).cards).toEqual([]);
        expect(performance.now() - begun).toBeLessThan(5_000);
      }
      await expect
        .poll(async () => (await poolOf(here, 'gpu')).paused.join(), { timeout: 90_000 })
        .toMatch(/timed out 2 times in a row/);
      expect((await poolOf(here, 'gpu')).paused.join()).toMatch(/reboot/i);
      expect((await poolOf(here, 'cpu')).paused).toEqual([]);
      // One that cannot be ended is not started a second time.
      if (mode === 'stuck') expect(host.asked).toBe(asked);
      const next = await hold(here, 'gpu');
      expect((await here.api.job(job.id)).state).toBe('running');
      expect(await here.api.job(next.id)).toMatchObject({
        state: 'queued',
        reason: expect.stringMatching(/^nothing new starts: .*timed out/),
      });
      await finish(job);
      expect((await slotOf(here, 'gpu/1')).agent.state).toBe('proving');

      host.tool('ok');
      await expect.poll(async () => (await poolOf(here, 'gpu')).paused, { timeout: 90_000 }).toEqual([]);
      await expect.poll(() => outputOf(here, next.id), { timeout: 30_000 }).toMatch(/cards=GPU/);
      await finish(next);
      expect((await here.api.devices()).map(({ state }) => state)).toEqual(['leased', 'free']);
    },
  );

  test.each(hangs)('a stop does not wait for a tool that never ends (%s); the next manager proves the card', async (mode) => {
    using host = gpuHost(cards(1));
    await using here = await gpuHome(host, { gpu: { agents: 1, devices: 1 } });
    const daemon = await here.up();
    const job = await hold(here, 'gpu');
    await running(here, job);
    host.tool(mode);
    await finish(job);
    await expect.poll(async () => (await slotOf(here, 'gpu/1')).agent.state).toBe('proving');
    await stopsSoon(daemon);
    expect((await here.census()).left).toEqual([]);
    host.tool('ok');
    host.change(0, { eccErrors: 1 });
    await here.up();
    await expect.poll(async () => (await device(here, uuidOf(0)))?.why, { timeout: 20_000 }).toMatch(/1 uncorrected memory error/);
  });

  test('a manager that starts while the tool hangs answers at once and stops at once', async () => {
    using host = gpuHost(cards(1));
    host.tool('hang');
    await using here = await gpuHome(host, { gpu: { agents: 1, devices: 1 }, cpu: { agents: 1 } });
    const begun = performance.now();
    const daemon = await here.up();
    expect((await see(here, 'cpu')).cards).toEqual([]);
    const job = await hold(here, 'gpu');
    expect(await here.api.job(job.id)).toMatchObject({ state: 'queued', reason: expect.stringMatching(/not been checked/) });
    await here.api.cancel(job.id);
    await daemon.stop();
    expect(performance.now() - begun).toBeLessThan(15_000);
  });
});
