/** The acceptance of a cloud at each of the three stand-ins, and at a program, in virtual time. */
import { gunzipSync } from 'node:zlib';
import { describe, expect, test } from 'vitest';
import { parse } from 'yaml';
import { awsBench, counted } from '../../test/kit/aws.ts';
import { azureWorld } from '../../test/kit/azure-cloud.ts';
import { commandWorld } from '../../test/kit/command-cloud.ts';
import type { HandClock } from '../../test/kit/core.ts';
import { gcpWorld } from '../../test/kit/gcp.ts';
import type { Cloud, Order } from '../ports/cloud.ts';
import { type Acceptance, type AcceptancePlan, accept, acceptanceOwner, costText } from './acceptance.ts';
import type { AcceptanceStep } from './acceptance-steps.ts';

const minute = 60_000;

/** What `printf` of the one command of cloud-init's text prints. */
function printed(userData: string | Buffer): string {
  const text = Buffer.isBuffer(userData) ? (userData[0] === 0x1f ? gunzipSync(userData) : userData).toString() : userData;
  const [command] = (parse(text) as { runcmd: string[][] }).runcmd;
  const [, format = '', words = ''] = /^printf '(.*)\\n' (.*) > \/dev\/console$/.exec(command?.[2] ?? '') ?? [];
  const given = words.split(' ');
  return `[   9.1] cloud-init\n${format.replace(/%s/g, () => given.shift() ?? '')}\n`;
}

interface World {
  readonly clock: HandClock;
  readonly cloud: Cloud;
  /** Whether a call is under way that waits for something else than time. */
  readonly isBusy?: () => boolean;
  readonly type: string;
  /** All that costs money or holds a name. */
  leftovers(): readonly unknown[];
}

const worlds = {
  async aws(deathDate: 'cloud' | 'manager-only' = 'cloud') {
    let speaks = true;
    const bench = awsBench({
      config: { deathDate },
      times: { visible: 8_000 },
      hooks: {
        onBoot: (machine) => {
          if (speaks) machine.console = printed(machine.userData);
        },
      },
    });
    const mute = (): void => {
      speaks = false;
    };
    return { ...bench, ...counted(bench.cloud), type: 'g4dn.xlarge', mute, leftovers: () => bench.aws.leftovers() };
  },
  async gcp(deathDate: 'cloud' | 'manager-only' = 'cloud') {
    const world = await gcpWorld(
      {
        hooks: {
          onBoot: (machine) => {
            machine.console += printed(machine.userData);
          },
        },
      },
      { deathDate },
    );
    const { gcp } = world;
    const leftovers = () => [...gcp.machines(), ...gcp.disks(), ...gcp.addresses()];
    return { ...world, type: 'n1-standard-4/nvidia-tesla-t4', leftovers };
  },
  async azure(deathDate: 'cloud' | 'manager-only' = 'cloud') {
    const world = azureWorld({ config: { deathDate } });
    world.world.hooks.onBoot = ({ name, userData }) => void world.azure.consoles.set(name, printed(userData));
    return {
      ...world,
      type: 'Standard_NC4as_T4_v3',
      leftovers: () => [...world.world.groups.keys(), ...world.world.resources.keys()],
    };
  },
  async command(deathDate: 'cloud' | 'manager-only' = 'cloud') {
    const world = commandWorld({ config: { deathDate } });
    world.hooks.console = printed;
    return { ...world, type: 'gpu-large', leftovers: () => [...world.machines.keys()] };
  },
};

interface Given {
  readonly plan?: Partial<AcceptancePlan>;
  readonly agrees?: boolean;
  /** Called at the end of each step. */
  readonly at?: (step: AcceptanceStep, stop: AbortController, hurry: AbortController) => void;
}

async function accepted(
  { clock, cloud, type, isBusy = () => false }: World,
  { plan = {}, agrees = true, at = () => {} }: Given = {},
) {
  const [stop, hurry] = [new AbortController(), new AbortController()];
  const asked: string[] = [];
  const owner = acceptanceOwner();
  const run = accept(
    cloud,
    {
      owner,
      types: [type],
      spot: 'never',
      image: cloud.usualImage,
      disk: 100,
      lifetime: 30 * minute,
      waitForEnd: null,
      keepGoing: false,
      ...plan,
    },
    {
      clock,
      async confirm(text) {
        asked.push(text);
        return agrees;
      },
      ended: async (step) => at(step, stop, hurry),
      waits: () => {},
      signal: stop.signal,
      hurry: hurry.signal,
    },
  );
  let isOver = false;
  const over = (): void => {
    isOver = true;
  };
  run.then(over, over);
  while (!isOver) {
    for (let turns = 0; turns < 10; turns++) await new Promise((resolve) => setImmediate(resolve));
    if (!isOver && !isBusy()) clock.advance(clock.next() ?? 0);
  }
  return { asked, owner, ...(await run) };
}

const failed = ({ steps }: Acceptance): string[] => steps.filter(({ result }) => result === 'failed').map(({ step }) => step);
const evidence = ({ steps }: Acceptance, name: string): string | undefined => steps.find(({ step }) => step === name)?.evidence;

const made = [
  ...['costs', 'create', 'end of life, read back', 'in the list', 'tags, read back', 'the same create call again'],
  ...['a line on the console', "another owner's sweep", 'destroy', 'gone', 'nothing is left over', 'clean up'],
];

describe.each(['aws', 'gcp', 'azure', 'command'] as const)('%s', (name) => {
  test('on an account where all is well, each step succeeds and nothing is left', async () => {
    const world = await worlds[name]();
    const result = await accepted(world);
    expect(failed(result)).toEqual([]);
    expect(result.steps.map(({ step }) => step).slice(-made.length)).toEqual(made);
    expect(result.steps.map(({ step }) => step)).toEqual(
      // A program says itself what it checks, and no price.
      expect.arrayContaining(name === 'command' ? ['program'] : ['credential', expect.stringMatching(/^permissions?$/), 'image']),
    );
    expect([result.end, result.left, world.leftovers()]).toEqual(['done', [], []]);
    expect(result.asked).toEqual([expect.stringMatching(/costs (about \$0\.\d\d|an unknown price) for at most 30 minutes/)]);
    expect(result.asked[0]?.includes('unknown')).toBe(name === 'command');
    expect(evidence(result, 'tags, read back')).toMatch(/^Right on .*machine/);
    expect(evidence(result, 'the same create call again')).toMatch(/; there is one machine\.$/);
  });

  test('the cloud ends a second machine by itself', async () => {
    const world = await worlds[name]();
    const result = await accepted(world, { plan: { waitForEnd: 15 * minute } });
    expect(failed(result)).toEqual([]);
    const how = name === 'azure' ? /^It is stopped, and its disk costs on/ : /^It is gone \d+ s after its end\.$/;
    expect(evidence(result, 'the cloud ends it by itself')).toMatch(how);
    expect([result.left, world.leftovers()]).toEqual([[], []]);
  });

  test('with "death_date: manager-only" it says that the end at the cloud is not examined, and waits for none', async () => {
    const world = await worlds[name]('manager-only');
    const result = await accepted(world, { plan: { waitForEnd: 15 * minute } });
    expect(result.steps.filter(({ step }) => /read back|by itself/.test(step) && !step.includes('tags'))).toMatchObject([
      {
        step: 'end of life, read back',
        result: 'warning',
        evidence: expect.stringMatching(/is not examined.*"death_date: cloud"/),
      },
      { step: 'the cloud ends it by itself', result: 'skipped', evidence: expect.stringMatching(/manager-only/) },
    ]);
    expect([failed(result), result.left, world.leftovers()]).toEqual([[], [], []]);
  });

  test('nothing is made before somebody agrees to the costs', async () => {
    const world = await worlds[name]();
    const result = await accepted(world, { agrees: false });
    expect([result.end, result.steps.at(-1)?.step, world.leftovers()]).toEqual(['declined', 'costs', []]);
  });

  test.each(made.slice(1, -1))('an interruption after "%s" removes everything', async (name_) => {
    const world = await worlds[name]();
    const result = await accepted(world, { at: ({ step }, stop) => step === name_ && stop.abort() });
    expect(result.end).toBe(name_ === 'nothing is left over' ? 'done' : 'interrupted');
    expect([result.left, world.leftovers()]).toEqual([[], []]);
  });

  test('a second interruption says what may be left', async () => {
    const world = await worlds[name]();
    const result = await accepted(world, {
      at({ step }, stop, hurry) {
        if (step !== 'create') return;
        stop.abort();
        hurry.abort();
      },
    });
    expect(result.left).toEqual([`everything with the tag onejob-owner=${result.owner}`]);
    expect(result.steps.at(-1)).toMatchObject({ step: 'clean up', result: 'failed' });
  });
});

describe('what is wrong shows in its step, and is removed all the same', () => {
  const cleaned = (result: Acceptance, world: World) => [result.left, world.leftovers()];

  test('the cloud does not confirm the end: AWS', async () => {
    const world = await worlds.aws();
    world.aws.faults.push({ service: 'scheduler', action: 'CreateSchedule', how: { status: 403, code: 'AccessDeniedException' } });
    const result = await accepted(world);
    expect(failed(result)).toEqual(['end of life, read back']);
    expect(cleaned(result, world)).toEqual([[], []]);
  });

  test('the same: Google Cloud', async () => {
    const world = await worlds.gcp();
    world.gcp.faults.end = 'missing';
    const result = await accepted(world);
    expect(failed(result)).toEqual(['end of life, read back']);
    expect(cleaned(result, world)).toEqual([[], []]);
  });

  test('the same: Azure', async () => {
    const world = await worlds.azure();
    world.world.faults.end = 'forgotten';
    const result = await accepted(world);
    expect(failed(result)).toEqual(['end of life, read back']);
    expect(cleaned(result, world)).toEqual([[], []]);
  });

  test('with keepGoing the other steps come all the same', async () => {
    const world = await worlds.azure();
    world.world.faults.end = 'forgotten';
    const result = await accepted(world, { plan: { keepGoing: true } });
    expect(failed(result)).toEqual(['end of life, read back']);
    expect(result.steps.map(({ step }) => step).slice(-made.length)).toEqual(made);
    expect(cleaned(result, world)).toEqual([[], []]);
  });

  test('a disk outlives its machine', async () => {
    const world = await worlds.gcp();
    world.gcp.faults.diskSurvives = true;
    const result = await accepted(world);
    expect(failed(result)).toEqual(['nothing is left over']);
    expect(evidence(result, 'nothing is left over')).toMatch(/there is still disk onejob-/);
    expect(evidence(result, 'clean up')).toMatch(/^Removed disk onejob-/);
    expect(cleaned(result, world)).toEqual([[], []]);
  });

  test('a group outlives its removal', async () => {
    const world = await worlds.azure();
    world.world.faults.blockedGroups = 1;
    const result = await accepted(world);
    expect(failed(result)).toEqual(['nothing is left over']);
    expect(evidence(result, 'nothing is left over')).toMatch(/There is still group /);
    expect(cleaned(result, world)).toEqual([[], []]);
  });

  test('a machine does not go although the cloud says so', async () => {
    const world = await worlds.azure();
    world.world.faults.lyingRemovals = 1;
    const result = await accepted(world);
    expect(failed(result)).toEqual(['gone']);
    expect(cleaned(result, world)).toEqual([[], []]);
  });

  test('a machine that never goes is named', async () => {
    const world = await worlds.gcp();
    world.gcp.faults.deleteLies = true;
    const result = await accepted(world, { plan: { lifetime: 120 * minute } });
    expect(failed(result)).toEqual(['gone', 'clean up']);
    expect(result.left).toContainEqual(expect.stringMatching(/^machine onejob-[0-9a-f]{16} in us-central1-/));
  });

  test('lists are incomplete', async () => {
    const world = await worlds.gcp();
    world.gcp.faults.unreachable = ['us-central1-f'];
    const result = await accepted(world, {
      at: ({ step }) => {
        if (step === 'in the list') world.gcp.clearFaults();
      },
    });
    expect(failed(result)).toEqual(['in the list']);
    expect(evidence(result, 'in the list')).toMatch(/still incomplete: .*us-central1-f/);
    expect(cleaned(result, world)).toEqual([[], []]);
  });

  test('and remain so: then nobody knows what is left', async () => {
    const world = await worlds.gcp();
    world.gcp.faults.unreachable = ['us-central1-f'];
    const result = await accepted(world);
    expect(failed(result)).toEqual(['in the list', 'clean up']);
    expect(result.left).toContainEqual(expect.stringMatching(/^unknown: .*us-central1-f/));
    expect(world.leftovers()).toEqual([]);
  });

  test('a permission is missing: nothing is made', async () => {
    const world = await worlds.aws();
    world.aws.denied.add('ec2:RunInstances');
    const result = await accepted(world);
    expect(failed(result)).toEqual(['permissions']);
    expect(world.aws.world.machines.size).toBe(0);
  });

  test('the console stays empty', async () => {
    const world = await worlds.aws();
    world.mute();
    const result = await accepted(world);
    expect(failed(result)).toEqual(['a line on the console']);
    expect(cleaned(result, world)).toEqual([[], []]);
  });

  test('nobody knows whether the machine was made: it is looked for, and removed', async () => {
    const world = await worlds.aws();
    let isMaking = false;
    const result = await accepted(world, {
      at({ step }) {
        if (step !== 'costs' || isMaking) return;
        isMaking = true;
        world.aws.faults.push({ action: 'RunInstances', how: 'lost' });
      },
    });
    expect(failed(result)).toEqual(['create']);
    expect(evidence(result, 'clean up')).toMatch(/^Removed .*machine i-/);
    expect(cleaned(result, world)).toEqual([[], []]);
  });

  test('no capacity in the first zone: the next one', async () => {
    const world = await worlds.aws();
    world.aws.exhaust(world.type, 'on-demand', 'us-west-2a');
    const result = await accepted(world);
    expect(failed(result)).toEqual([]);
    expect(evidence(result, 'create')).toMatch(/in us-west-2b, created in .*Without capacity before: g4dn.xlarge in us-west-2a\.$/);
  });

  test('a token that protects against nothing', async () => {
    const world = await worlds.aws();
    const { cloud } = world;
    let count = 0;
    const forgetful: Cloud = Object.assign(Object.create(cloud), {
      create(order: Order, signal: AbortSignal) {
        count += 1;
        return cloud.create({ ...order, token: `${order.token.slice(0, -1)}${count}` }, signal);
      },
    });
    const result = await accepted({ ...world, cloud: forgetful });
    expect(failed(result)).toEqual(['the same create call again']);
    expect(evidence(result, 'the same create call again')).toMatch(/^There are 2 machines: i-/);
    expect(cleaned(result, world)).toEqual([[], []]);
  });
});

test('the cheapest type is made', async () => {
  const world = await worlds.aws();
  const result = await accepted(world, { plan: { types: ['g6.xlarge', 'g4dn.xlarge', 'g5.xlarge'], spot: 'prefer' } });
  expect(evidence(result, 'create')).toMatch(/: g4dn\.xlarge \(spot\) in /);
  expect([failed(result), world.leftovers()]).toEqual([[], []]);
});

test('costs are rounded up, and may be unknown', () => {
  const price = { perHour: 0.526, asOf: '2026-11-01' };
  expect(costText([price], 30 * minute)).toBe('about $0.27 for at most 30 minutes (estimate of 2026-11-01)');
  expect(costText([{ ...price, perHour: 0.2 }, price], 45 * minute)).toBe(
    'about $0.40 for at most 45 minutes (estimate of 2026-11-01)',
  );
  expect(costText([price, null], 30 * minute)).toBe('an unknown price for at most 30 minutes');
});
