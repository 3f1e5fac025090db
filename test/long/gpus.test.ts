/**
 * S1 and the clean-slot proof on a host with cards that exist only in what its tool prints: who gets which card, and what
 * happens to a slot whose card is held, gone or not clean.
 */
import { describe, expect, test } from 'vitest';
import { card } from '../support/gpu-cards.ts';
import { gpuHost } from '../support/gpu-host.ts';
import { bystander, gpuHome, hold, see, sightOf } from '../support/gpu-jobs.ts';
import { slotOf } from '../support/look.ts';
import { lacks } from '../support/require.ts';

describe.skipIf(lacks('bubblewrap', 'root'))('a host with GPUs', () => {
  test('gives each agent its own cards and shows it no other', async () => {
    using host = gpuHost(Array.from({ length: 8 }, (_, n) => card(n)));
    await using here = await gpuHome(host, {
      pairs: { agents: 2, devices: 2 },
      each: { agents: 'per-device', devices: 1 },
      cpu: { agents: 1 },
    });
    const daemon = await here.up();
    const uuids = host.cards.map(({ uuid }) => uuid);
    await expect.poll(async () => (await here.api.status()).pools.map(({ slots }) => slots.length)).toEqual([2, 4, 1]);

    const jobs = await Promise.all(['pairs', 'pairs', 'each', 'each', 'each', 'each'].map((pool) => hold(here, pool)));
    await expect
      .poll(async () => Promise.all(jobs.map(async ({ id }) => (await here.api.job(id)).state)))
      .toEqual(jobs.map(() => 'running'));
    const seen = await Promise.all(
      jobs.map(({ id }) =>
        expect
          .poll(() => sightOf(here, id))
          .toBeDefined()
          .then(() => sightOf(here, id)),
      ),
    );
    expect(seen.map(({ cards }) => cards.length)).toEqual([2, 2, 1, 1, 1, 1]);
    // All at the same time, and none twice.
    expect(seen.flatMap(({ cards }) => cards).sort()).toEqual(uuids);
    for (const { cards, nvidia, nodes } of seen) {
      expect(nvidia).toBe(cards.join(','));
      expect(nodes).toEqual([...cards.map((uuid) => `nvidia${uuids.indexOf(uuid)}`), 'nvidia-uvm', 'nvidiactl'].sort());
    }
    expect(await see(here, 'cpu')).toEqual({ cards: [], nvidia: 'void', nodes: [] });

    for (const job of jobs) job.go();
    for (const { ended } of jobs) expect((await ended).result).toEqual({ kind: 'code', code: 0 });
    await daemon.stop();
  });

  test('waits for a card that a person holds or that is gone, and for what a dead job left on one', async () => {
    using host = gpuHost(Array.from({ length: 4 }, (_, n) => card(n)));
    const [held, gone, spare, other] = host.cards.map(({ uuid }) => uuid);
    const only = (uuid: string | undefined) => ({ devices: { count: 1, uuid } });
    await using person = bystander();
    host.change(0, { usedMiB: 9422, processes: [{ pid: person.pid, name: '/usr/bin/python3', memoryMiB: 9421 }] });
    await using here = await gpuHome(host, { held: only(held), gone: only(gone), spare: only(spare), other: only(other) });
    const daemon = await here.up();
    const heldBack = async (pool: string) => (await slotOf(here, `${pool}/1`)).held;

    // A person's process: the slot waits, and says for whom. The other cards continue.
    const waits = hold(here, 'held');
    await expect.poll(() => heldBack('held')).toMatch(/^held by nobody: python3, 9\.2 GiB, since (20\d\d-\d\d-\d\d )?\d\d:\d\d$/);
    expect((await see(here, 'spare')).cards).toEqual([spare]);
    expect(await here.api.job((await waits).id)).toMatchObject({
      state: 'queued',
      reason: expect.stringContaining('held by nobody'),
    });
    expect((await here.cli(['status']).ended).stdout).toContain('held by nobody: python3, 9.2 GiB');

    // The person has gone, and another card falls out of its slot while nothing uses it. Any proof looks at all of them.
    await person[Symbol.asyncDispose]();
    host.change(0, { usedMiB: 1, processes: [] });
    host.unplug(1);
    await see(here, 'spare');
    await expect.poll(async () => (await here.api.job((await waits).id)).state).toBe('running');
    (await waits).go();
    expect((await (await waits).ended).result).toEqual({ kind: 'code', code: 0 });
    expect(await heldBack('gone')).toMatch(
      new RegExp(`^${gone} absent since (20\\d\\d-\\d\\d-\\d\\d )?\\d\\d:\\d\\d; it was at PCI [0-9a-f:.]+$`),
    );
    const status = await here.cli(['status']).ended;
    expect(status.code).toBe(1);
    expect(status.stdout).toContain(`${gone} absent since`);
    const late = hold(here, 'gone');
    host.plug(1);
    await see(here, 'spare');
    (await late).go();
    expect((await (await late).ended).result).toEqual({ kind: 'code', code: 0 });
    expect((await here.cli(['status']).ended).code).toBe(0);

    // A process that the end of its agent did not end keeps the card for as long as it lives.
    const first = await hold(here, 'other');
    await expect.poll(async () => (await slotOf(here, 'other/1')).agent.state).toBe('busy');
    const agent = (await slotOf(here, 'other/1')).agent.agent ?? '';
    await using zombie = bystander({ env: { ONEJOB_AGENT_MARK: agent }, uid: 0 });
    host.change(3, { usedMiB: 700, processes: [{ pid: zombie.pid, name: 'train', memoryMiB: 600 }] });
    first.go();
    expect((await first.ended).result).toEqual({ kind: 'code', code: 0 });
    const second = hold(here, 'other');
    await expect
      .poll(() => slotOf(here, 'other/1'))
      .toMatchObject({
        agent: { state: 'proving' },
        note: `train (pid ${zombie.pid}) is still leaving ${other}.`,
      });
    expect((await here.api.job((await second).id)).state).toBe('queued');
    await zombie[Symbol.asyncDispose]();
    host.change(3, { usedMiB: 1, processes: [] });
    (await second).go();
    expect((await (await second).ended).result).toEqual({ kind: 'code', code: 0 });
    const proofs = await here.api.proofs({ device: other ?? '', limit: 10 });
    expect(proofs.filter((proof) => proof.agent === agent).map(({ verdict }) => verdict)).toEqual(['clean', 'wait']);
    await daemon.stop();
  });

  test('never gives a card to two managers, and gives it on when one of them stops', async () => {
    using host = gpuHost([card(0), card(1), card(2)]);
    await using first = await gpuHome(host, { a: { agents: 2, devices: 1 } });
    await using second = await gpuHome(host, { b: { agents: 'per-device', devices: 1 } });
    const daemon = await first.up();
    await expect.poll(async () => (await first.api.devices()).map(({ state }) => state)).toEqual(['leased', 'leased', 'free']);
    const other = await second.up();
    await expect
      .poll(async () => (await second.api.devices()).map(({ state }) => state))
      .toEqual(['elsewhere', 'elsewhere', 'leased']);
    expect((await second.api.devices())[0]?.why).toContain(`another onejob has it (pid ${daemon.pid}, state in ${first.stateDir}`);
    const [one, two, three] = await Promise.all([see(first, 'a'), see(first, 'a'), see(second, 'b')]);
    expect(three.cards).toEqual([host.cards[2]?.uuid]);
    expect([...one.cards, ...two.cards]).not.toContain(host.cards[2]?.uuid);

    await daemon.stop();
    await see(second, 'b');
    await expect.poll(async () => (await second.api.status()).pools[0]?.slots.length).toBe(3);
    await other.stop();
  });

  test('does not let one-GPU jobs starve one that needs two', async () => {
    using host = gpuHost([card(0), card(1)]);
    const passing = { standby: false };
    await using here = await gpuHome(host, {
      one: { agents: 2, devices: 1, ...passing },
      two: { agents: 1, devices: 2, ...passing },
    });
    const daemon = await here.up();
    const script = 'sleep 0.1';
    const small = await Promise.all(
      Array.from({ length: 14 }, () => here.api.submit({ command: ['sh', '-c', script], pool: 'one' })),
    );
    const large = await see(here, 'two', 2);
    expect([...large.cards].sort()).toEqual(host.cards.map(({ uuid }) => uuid));
    const jobs = await Promise.all(small.map(({ id }) => here.api.settled(id)));
    expect(jobs.map(({ result }) => result)).toEqual(small.map(() => ({ kind: 'code', code: 0 })));
    const [two] = await here.api.jobs({ all: true, pool: 'two' });
    const after = jobs.filter((job) => (job.startedAt ?? 0) > (two?.startedAt ?? 0));
    expect(after.length).toBeGreaterThan(6);
    await daemon.stop();
  });
});
