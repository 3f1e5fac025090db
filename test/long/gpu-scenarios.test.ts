/**
 * Bad days of cards, acted out: each test says what a card or the kernel does, and looks at what people see. Whatever it is, no
 * running job is touched, and only what is at fault is put away.
 */
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { card, instance, type StubGpu } from '../support/gpu-cards.ts';
import { type GpuHost, gpuHost } from '../support/gpu-host.ts';
import { bystander, device, finish, gpuHome, hold, oneOfTwo, running, see, sightOf, stopsSoon } from '../support/gpu-jobs.ts';
import { poolOf, slotOf } from '../support/look.ts';
import { lacks } from '../support/require.ts';

const cards = (count: number): StubGpu[] => Array.from({ length: count }, (_, n) => card(n));
const uuidOf = (n: number): string => card(n).uuid;

describe.skipIf(lacks('bubblewrap', 'root'))('a bad day', () => {
  test("a desktop's compositor on the card fails nothing, however much it draws", async () => {
    await using compositor = bystander();
    const drawing = (memoryMiB: number) => ({
      display: true,
      usedMiB: memoryMiB + 9,
      processes: [
        { pid: compositor.pid, name: '/usr/lib/xorg/Xorg', type: 'G' as const, memoryMiB: memoryMiB - 100 },
        { pid: compositor.pid, name: '/usr/bin/firefox', type: 'C+G' as const, memoryMiB: 100 },
      ],
    });
    using host = gpuHost([card(0, drawing(300))]);
    await using here = await gpuHome(host, { gpu: { agents: 1, devices: 1 } });
    await here.up();
    const job = await hold(here, 'gpu');
    await running(here, job);
    host.change(0, drawing(2_500));
    await finish(job);
    expect((await see(here, 'gpu')).cards).toEqual([uuidOf(0)]);
    const verdicts = async () => (await here.api.proofs({ device: null, limit: 10 })).map(({ verdict }) => verdict);
    await expect.poll(verdicts).toEqual(['clean', 'clean']);
  });

  test.each([
    ['falls off the bus', (host: GpuHost) => host.unplug(0), /^missing$|^quarantined$/],
    ['is lost by its driver', (host: GpuHost) => host.change(0, { isLost: true }), /^quarantined$/],
    [
      'is lost, says the kernel log',
      (host: GpuHost) => {
        host.change(0, { isLost: true });
        host.kernel('Xid (PCI:0000:1a:00): 79, pid=4242, name=python, GPU has fallen off the bus.');
      },
      /^quarantined$/,
    ],
  ])('a card that %s under a job: the job continues, then its slot moves; other cards do not notice', async (_, lose, state) => {
    using host = gpuHost(cards(3));
    await using here = await gpuHome(host, { gpu: { agents: 2, devices: 1 } });
    await here.up();
    const jobs = [await hold(here, 'gpu'), await hold(here, 'gpu')];
    const places = await Promise.all(jobs.map((job) => running(here, job)));
    const [doomed, well] = places[0]?.[0] === uuidOf(0) ? jobs : jobs.toReversed();
    if (doomed === undefined || well === undefined) throw new Error('no jobs');
    lose(host);
    await finish(doomed);
    await expect.poll(async () => (await device(here, uuidOf(0)))?.state).toMatch(state);
    await expect.poll(() => device(here, uuidOf(0))).toMatchObject({ slot: null, why: expect.stringContaining(uuidOf(0)) });
    // Its slot has the spare one now, and the other job is where it was.
    expect((await see(here, 'gpu')).cards).toEqual([uuidOf(2)]);
    expect((await here.api.job(well.id)).state).toBe('running');
    expect((await device(here, uuidOf(1)))?.state).toBe('leased');
    await finish(well);
    const [proof] = await here.api.proofs({ device: uuidOf(0), limit: 1 });
    expect(proof).toMatchObject({
      verdict: 'dirty',
      evidence: { message: expect.stringMatching(/no longer listed|off the bus|is lost/) },
    });
  });

  test('MIG set up anew under our feet: what is gone is missed, what is new is used, and what comes back is used again', async () => {
    const split = (...instances: ReturnType<typeof instance>[]): StubGpu => card(0, { usedMiB: 40, instances });
    const [a, b, c] = [instance(0, 7), instance(1, 8), instance(2, 9)];
    const wide = instance(3, 2, { profile: '3g.40gb', memoryMiB: 40_192 });
    using host = gpuHost([split(a, b, c), card(1)]);
    const each = { agents: 'per-device', devices: { count: 1, mig: true } };
    await using here = await gpuHome(host, { mig: each, whole: { agents: 1, devices: 1 } });
    await here.up();
    await expect
      .poll(async () => (await poolOf(here, 'mig')).slots.map((slot) => slot.devices))
      .toEqual([[a.uuid], [b.uuid], [c.uuid]]);
    const jobs = [await hold(here, 'mig'), await hold(here, 'mig'), await hold(here, 'mig')];
    await Promise.all(jobs.map((job) => running(here, job)));

    host.change(0, { instances: [a, wide] });
    expect((await see(here, 'whole')).cards).toEqual([uuidOf(1)]);
    expect(await Promise.all(jobs.map(async ({ id }) => (await here.api.job(id)).state))).toEqual(jobs.map(() => 'running'));
    expect((await see(here, 'mig')).cards).toEqual([wide.uuid]);
    await Promise.all(jobs.map(finish));
    for (const gone of [b, c]) {
      await expect
        .poll(() => device(here, gone.uuid))
        .toMatchObject({
          state: expect.stringMatching(/missing|quarantined/),
          why: expect.stringMatching(/layout/i),
        });
    }
    expect((await here.cli(['status']).ended).code).toBe(1);
    expect((await device(here, a.uuid))?.state).toBe('leased');
    expect(
      new Set([...(await see(here, 'mig')).cards, ...(await see(here, 'mig')).cards]).isSubsetOf(new Set([a.uuid, wide.uuid])),
    ).toBe(true);

    host.change(0, { instances: [a, b, c] });
    await see(here, 'whole');
    for (const back of [b, c]) await here.api.changeDevice(back.uuid, { act: 'clear' });
    await expect.poll(async () => (await device(here, b.uuid))?.state).toBe('leased');
    const again = [await hold(here, 'mig'), await hold(here, 'mig'), await hold(here, 'mig')];
    expect((await Promise.all(again.map((job) => running(here, job)))).flat().sort()).toEqual([a.uuid, b.uuid, c.uuid].sort());
    await Promise.all(again.map(finish));
  });

  test.each([
    [
      'counts uncorrected errors',
      (host: GpuHost) => host.change(0, { eccErrors: 2 }),
      'eccErrors',
      /: 2 uncorrected memory errors on this device since/,
    ],
    [
      'has an Xid that takes a reset',
      (host: GpuHost) => host.kernel('Xid (PCI:0000:1a:00): 95, pid=4242, name=python, Uncontained: FBHUB. RST: Yes, D-RST: No'),
      'kernelLog',
      /Xid 95/,
    ],
    ['asks for a reset', (host: GpuHost) => host.change(0, { recoveryAction: 'Reset' }), 'recoveryAction', /Reset/],
    [
      'was left in another compute mode',
      (host: GpuHost) => host.change(0, { computeMode: 'Exclusive_Process' }),
      'computeMode',
      /was Default and is Exclusive_Process/,
    ],
    [
      'was left so that no program can compute',
      (host: GpuHost) => host.change(0, { computeMode: 'Prohibited' }),
      'computeMode',
      /lets no program compute \(compute mode Prohibited\)/,
    ],
  ])(
    'a card that %s is put away alone, with evidence; its slot moves, and a person brings it back',
    async (_, fail, check, why) => {
      using host = gpuHost(cards(2));
      const { here, daemon, job } = await oneOfTwo(host);
      await using _home = here;
      fail(host);
      // Another card's neighbour said something harmless meanwhile.
      host.kernel('Xid (PCI:0000:1b:00): 13, pid=1, name=python, Graphics Exception');
      await finish(job);
      expect((await see(here, 'gpu')).cards).toEqual([uuidOf(1)]);
      const put = await device(here, uuidOf(0));
      // Where a look can show that it is well again it is tried by itself; the others take what is said in the hint.
      expect(put?.retryAt).toEqual(check === 'computeMode' ? expect.any(Number) : null);
      expect(put).toMatchObject({ state: 'quarantined', slot: null, why: expect.stringMatching(why), hint: expect.any(String) });
      const proofs = await here.api.proofs({ device: uuidOf(0), limit: 10 });
      expect(proofs).toHaveLength(1);
      expect(proofs[0]).toMatchObject({ verdict: 'dirty', slot: 'gpu/1' });
      expect(JSON.stringify(proofs[0]?.evidence)).toContain(`{"check":"${check}","result":"failed"`);
      expect((await here.cli(['proofs', '0', '--json']).ended).stdout).toContain(`"check":"${check}","result":"failed"`);

      // It stays away over a restart, and its slot stays where it moved to, also when the first card may be used again.
      const places = async () => [
        await slotOf(here, 'gpu/1').then(({ devices }) => devices),
        (await device(here, uuidOf(0)))?.state,
      ];
      await daemon.stop();
      const next = await here.up();
      await expect.poll(places).toEqual([[uuidOf(1)], 'quarantined']);
      host.set(cards(2));
      await here.api.changeDevice(uuidOf(0), { act: 'clear' });
      await expect.poll(places).toEqual([[uuidOf(1)], 'free']);
      await next.stop();
      await here.up();
      await expect.poll(async () => (await slotOf(here, 'gpu/1')).standby.state).toBe('standby');
      expect(await places()).toEqual([[uuidOf(1)], 'free']);
      await here.api.changeDevice(uuidOf(1), { act: 'quarantine', reason: 'a test' });
      expect((await see(here, 'gpu')).cards).toEqual([uuidOf(0)]);
      await expect.poll(async () => (await here.api.proofs({ device: uuidOf(0), limit: 1 }))[0]?.verdict).toBe('clean');
    },
  );

  test("an error that is a program's own puts no card away", async () => {
    using host = gpuHost(cards(2));
    const { here, job } = await oneOfTwo(host);
    await using _home = here;
    host.kernel('Xid (PCI:0000:1a:00): 31, pid=4242, name=python, MMU Fault');
    await finish(job);
    expect((await see(here, 'gpu')).cards).toEqual([uuidOf(0)]);
    const evidence = JSON.stringify(await here.api.proofs({ device: uuidOf(0), limit: 5 }));
    expect(evidence).toContain('Xid (PCI:0000:1a:00): 31');
  });

  test('without a kernel log a card is proved by the rest, and the evidence says so', async () => {
    using host = gpuHost(cards(1));
    rmSync(join(host.dir, 'kmsg'));
    await using here = await gpuHome(host, { gpu: { agents: 1, devices: 1 } });
    const { child } = await here.up();
    for (let n = 0; n < 2; n++) expect((await see(here, 'gpu')).cards).toEqual([uuidOf(0)]);
    const [proof] = await here.api.proofs({ device: null, limit: 1 });
    expect(proof?.verdict).toBe('clean');
    expect(JSON.stringify(proof?.evidence)).toContain('"check":"kernelLog","result":"unchecked"');
    expect((child.stdout + child.stderr).match(/The kernel log \S+ cannot be read/g)).toHaveLength(1);
  });

  test('a stop does not wait for a person to leave a card; the next manager looks before it uses that card', async () => {
    using host = gpuHost(cards(2));
    const { here, daemon, job } = await oneOfTwo(host);
    await using _home = here;
    await using person = bystander();
    host.change(0, { usedMiB: 9_001, processes: [{ pid: person.pid, memoryMiB: 9_000 }] });
    await finish(job);
    await expect
      .poll(() => slotOf(here, 'gpu/1'))
      .toMatchObject({ agent: { state: 'proving' }, note: expect.stringMatching(/^held by nobody/) });
    await stopsSoon(daemon);
    expect((await here.census()).left).toEqual([]);

    await here.up();
    const next = await hold(here, 'gpu');
    await expect.poll(async () => (await here.api.job(next.id)).state).toBe('running');
    expect(await running(here, next)).toEqual([uuidOf(1)]);
    await expect
      .poll(async () => (await device(here, uuidOf(0)))?.why)
      .toMatch(/stopped before it verified that the device is clean/);
    await person[Symbol.asyncDispose]();
    host.change(0, { usedMiB: card(0).usedMiB, processes: [] });
    await expect.poll(async () => (await device(here, uuidOf(0)))?.state, { timeout: 20_000 }).toBe('free');
    await finish(next);
  });

  test('cards in another order after a boot: each slot has the card it had, under its new number', async () => {
    using host = gpuHost(cards(4));
    await using here = await gpuHome(host, { gpu: { agents: 3, devices: 1 } });
    const before = await here.up();
    const places = async (): Promise<readonly (readonly string[])[]> =>
      (await poolOf(here, 'gpu')).slots.map(({ devices }) => devices);
    await expect.poll(places).toEqual([[uuidOf(0)], [uuidOf(1)], [uuidOf(2)]]);
    await before.stop();
    // What was card 3 is the first now, and one that was never used is the last.
    const turned = [3, 1, 0, 2].map((n, at) => ({ ...card(at), uuid: uuidOf(n) }));
    host.set(turned);
    await here.up();
    await expect.poll(places).toEqual([[uuidOf(0)], [uuidOf(1)], [uuidOf(2)]]);
    const jobs = [await hold(here, 'gpu'), await hold(here, 'gpu'), await hold(here, 'gpu')];
    for (const job of jobs) {
      const [uuid = ''] = await running(here, job);
      const { minor } = turned.find((one) => one.uuid === uuid) ?? { minor: -1 };
      expect((await sightOf(here, job.id)).nodes).toContain(`nvidia${minor}`);
      expect((await sightOf(here, job.id)).nodes).toHaveLength(3);
    }
    await Promise.all(jobs.map(finish));
  });

  test('jobs that wait for the same card pool all begin when one large one ends', async () => {
    using host = gpuHost(cards(2));
    const passing = { standby: false };
    await using here = await gpuHome(host, {
      one: { agents: 2, devices: 1, ...passing },
      two: { agents: 1, devices: 2, ...passing },
    });
    await here.up();
    const large = await hold(here, 'two');
    await running(here, large);
    const small = [await hold(here, 'one'), await hold(here, 'one')];
    expect(await Promise.all(small.map(async ({ id }) => (await here.api.job(id)).state))).toEqual(['queued', 'queued']);
    await finish(large);
    const places = await Promise.all(small.map((job) => running(here, job)));
    expect(places.flat().sort()).toEqual([uuidOf(0), uuidOf(1)]);
    await Promise.all(small.map(finish));
  });
});
