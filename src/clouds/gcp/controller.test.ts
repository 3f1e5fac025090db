/** The controller with this adapter, on the stand-in in virtual time: from a job that waits to a receipt. */
import { expect, test } from 'vitest';
import { type GcpWorld, gcpWorld, never } from '../../../test/kit/gcp.ts';
import type { Machine as Instance } from '../../../test/standins/gcp/machines.ts';
import { type Controller, createController } from '../../machines/controller.ts';
import { ended } from '../../machines/plan.ts';
import type { HostConfig } from '../../schema/host-config.ts';
import { type Machine, mayLive } from '../../store/machine.ts';

const burst: HostConfig = {
  host: 'burst',
  cloud: 'google',
  types: ['n1-standard-4/nvidia-tesla-t4', 'g2-standard-4'],
  spot: 'never',
  image: null,
  min: 0,
  max: 4,
  idle: 600_000,
  lifetime: 6 * 3_600_000,
  boot: 1_200_000,
  budget: null,
  prices: {},
  disk: 100,
  opengl: 'none',
  setup: [],
  agents: 1,
};
const silent = { info() {}, warn() {}, error() {} };

interface Play extends GcpWorld {
  readonly controller: Controller;
  /** Machines of this host that ever were in the ledger. */
  rows(): readonly Machine[];
  /** The controller dies, and another one takes over. */
  restart(): Controller;
}

/** Machines join when they boot, report that they have nothing to do, and say at once that they are drained. */
async function play(host: Partial<HostConfig> = {}): Promise<Play> {
  const running = new Set<Instance>();
  let current: Controller | null = null;
  const onBoot = (machine: Instance): void => {
    running.add(machine);
    current?.joined(machine.name);
    current?.setWaiting('burst', 0);
  };
  const world = await gcpWorld({ hooks: { onBoot, onEnd: (machine) => void running.delete(machine) } });
  const rows = new Map<string, Machine>();
  const wanted = new Map<string, number>();
  const all = () => [...rows.values()];
  const machines = {
    put: (machine: Machine) => void rows.set(machine.run, machine),
    live: () => all().filter(mayLive),
    gone: (time: number) => all().filter((one) => !mayLive(one) && one.since >= time),
    newest: (limit: number) =>
      all()
        .filter((one) => !mayLive(one))
        .slice(0, limit),
    get: (run: string) => rows.get(run) ?? null,
    prune: () => {},
    wanted: () => new Map(wanted),
    want: (name: string, count: number) => void wanted.set(name, count),
  };
  const start = (): Controller => {
    current = createController({
      clock: world.clock,
      log: silent,
      hosts: [{ ...burst, ...host }],
      userData: () => '#cloud-config\n',
      clouds: new Map([['google', { cloud: world.cloud, owner: 'lab-7' }]]),
      store: { machines: machines as never, transaction: ((_: unknown, act: () => unknown) => act()) as never },
    });
    current.start();
    return current;
  };
  const controller = start();
  const report = (): void => {
    for (const machine of running) {
      const idleFor = (world.gcp.now() - (machine.started ?? 0)) / 1000;
      current?.report(machine.name, { busy: 0, agents: 1, idleFor, problem: null });
      if (current?.get(machine.name)?.state === 'draining')
        current.change(machine.name, (known, now) => ended(known, now, known.why ?? 'It is drained.', false));
    }
    world.clock.after(10_000, report);
  };
  world.clock.after(10_000, report);
  return {
    ...world,
    controller,
    rows: all,
    restart() {
      current?.close();
      return start();
    },
  };
}

test('a job waits, the first zone has nothing, and after the job nothing is left but receipts', async () => {
  const { controller, gcp, pass, rows } = await play();
  gcp.faults.stockout = { zones: ['us-central1-a'], available: ['us-central1-f'] };
  controller.setWaiting('burst', 1);
  await pass(120_000);
  const [joined] = rows().filter(({ state }) => state === 'joined');
  expect(joined).toMatchObject({
    made: { place: 'us-central1-f' },
    price: { perHour: 0.54 },
    end: expect.stringMatching(/^Compute Engine deletes it at /),
  });
  await pass(900_000);
  expect([gcp.machines(), gcp.disks()]).toEqual([[], []]);
  expect(rows().map(({ state, host }) => [state, host])).toEqual([
    ['gone', 'burst'],
    ['gone', 'burst'],
  ]);
  expect(rows().every(({ absent }) => absent.length >= 2)).toBe(true);
});

test('Google ends what a controller leaves behind that never comes back', async () => {
  const { controller, gcp, pass } = await play({ min: 2, lifetime: 3_600_000 });
  await pass(60_000);
  expect(gcp.machines()).toHaveLength(2);
  controller.close();
  await pass(3_600_000 + 60_000);
  expect([gcp.machines(), gcp.disks()]).toEqual([[], []]);
});

test('an answer that was lost makes no second machine, also across a restart', async () => {
  const { controller, gcp, pass, restart } = await play({ types: ['g2-standard-4'], max: 1 });
  gcp.fail({ method: 'POST', path: /\/instances\b/, times: 1 }, 'lost');
  controller.setWaiting('burst', 1);
  await pass(2_000);
  restart().setWaiting('burst', 1);
  const most: number[] = [];
  for (let minutes = 0; minutes < 10; minutes++) {
    await pass(60_000);
    most.push(gcp.machines().length);
  }
  expect(Math.max(...most)).toBe(1);
});

test('a machine whose removal Google only claims is removed again, and gone only when lists are complete', async () => {
  const { controller, gcp, pass, rows } = await play();
  controller.setWaiting('burst', 1);
  await pass(60_000);
  Object.assign(gcp.faults, { deleteLies: true, diskSurvives: true });
  controller.down('burst', true);
  await pass(300_000);
  expect([gcp.machines().length, rows().map(({ state }) => state)]).toEqual([1, ['ending']]);
  Object.assign(gcp.faults, { deleteLies: false, unreachable: ['us-central1-c'] });
  await pass(600_000);
  expect([gcp.machines(), gcp.disks(), rows().map(({ state }) => state)]).toEqual([[], [], ['ending']]);
  gcp.clearFaults();
  await pass(300_000);
  expect(rows().map(({ state }) => state)).toEqual(['gone']);
});

test('a clock that is ten minutes off changes nothing of it, and a foreign machine stays', async () => {
  const { controller, cloud, gcp, pass, done, order, rows } = await play();
  await done(cloud.create(order({ owner: 'other', host: 'burst' }), never));
  gcp.faults.skew = -600_000;
  controller.setWaiting('burst', 1);
  await pass(60_000);
  expect(rows().map(({ state }) => state)).toEqual(['joined']);
  await pass(1_200_000);
  expect([rows().map(({ state }) => state), gcp.machines().map(({ labels }) => labels['onejob-owner'])]).toEqual([
    ['gone'],
    ['other'],
  ]);
});
