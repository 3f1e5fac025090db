/** Checks of devices without a host, as `config check` reports them. */
import fc from 'fast-check';
import { afterAll, describe, expect, test } from 'vitest';
import { Folder } from '../../test/kit/config.ts';
import { oneDevice } from '../../test/support/devices.ts';
import { overSubscriptions } from './check-devices.ts';

const folder = new Folder();
afterAll(() => folder[Symbol.dispose]());

const [a, b, c] = ['GPU-aaaa', 'GPU-bbbb', 'GPU-cccc'];
const pools = (lines: Readonly<Record<string, string>>) =>
  folder.check(
    `pools:\n${Object.entries(lines)
      .map(([name, pool]) => `  ${name}: ${pool}\n`)
      .join('')}`,
  );
const over = (place: string, names: string, wanted: number, named: number) =>
  `config.yml:${place}.devices.uuid: names devices that other pools keep: ${names} together want ${wanted} but name only ${named}; name other devices, ask for fewer agents, or let pools share in turn with "standby: false"`;

describe('pools that keep standbys and name the same devices', () => {
  test('are told that there are too few, with both names, at the later one', async () => {
    const lines = await pools({
      train: `{ agents: 2, devices: { uuid: [${a}, ${b}] } }`,
      test: `{ agents: 1, devices: { uuid: ${b} } }`,
    });
    expect(lines).toEqual([over('3:39: pools.test', 'pools.train and pools.test', 3, 2)]);
  });

  test('in defaults, the place is there', async () => {
    const lines = await folder.check(`defaults: { devices: { uuid: ${a} } }\npools: { x: {}, y: {} }\n`);
    expect(lines).toEqual([over('1:30: pools.y', 'pools.x and pools.y', 2, 1)]);
  });

  test('all that are in each other’s way are named, and nobody else', async () => {
    const lines = await pools({
      one: `{ devices: { uuid: [${a}, ${b}] } }`,
      two: `{ devices: { uuid: [${b}, ${a}] } }`,
      else: `{ devices: { uuid: ${c} } }`,
      three: `{ devices: { uuid: [${a}] } }`,
    });
    expect(lines).toEqual([over('5:29: pools.three', 'pools.one, pools.two and pools.three', 3, 2)]);
  });

  test.each([
    ['each can have its own', `{ agents: 1, devices: { uuid: [${a}, ${b}] } }`, `{ devices: { uuid: ${a} } }`],
    ['one of them leases for each job', `{ standby: false, devices: { uuid: ${a} } }`, `{ devices: { uuid: ${a} } }`],
    ['one of them has no agents', `{ agents: 0, devices: { uuid: ${a} } }`, `{ devices: { uuid: ${a} } }`],
    ['the first one shares', `{ agents: 4, devices: { uuid: [${a}, ${b}], share: 4 } }`, `{ devices: { uuid: ${a} } }`],
    ['the last one takes what is left', `{ devices: { uuid: ${a} } }`, `{ agents: per-device, devices: { uuid: [${a}, ${b}] } }`],
    [
      'only the host knows how many instances there are',
      `{ agents: 7, devices: { uuid: ${a}, mig: true } }`,
      `{ agents: 7, devices: { uuid: ${a}, mig: 1g.10gb } }`,
    ],
    [
      'only the host knows which of them fit',
      `{ agents: per-device, devices: { uuid: [${a}, ${b}], model: T4 } }`,
      `{ devices: { uuid: ${a} } }`,
    ],
    ['one names none', '{ agents: 9, devices: 1 }', `{ devices: { uuid: ${a} } }`],
  ])('are right when %s', async (_, first, second) => {
    const lines = await pools({ first, second });
    expect(lines.filter((line) => !line.includes('pools.first.agents: is 0'))).toEqual([]);
  });

  test('a pool without agents is warned about, since its jobs would wait for ever', async () => {
    const lines = await pools({ x: '{ agents: 0 }', y: '{ agents: 1 }' });
    expect(lines).toEqual(['config.yml:2:16: warning: pools.x.agents: is 0: jobs of this pool wait until it is larger']);
  });

  test.each([
    ['all', `{ devices: { uuid: [${a}, ${b}], count: all } }`, 3],
    ['per-device', `{ agents: per-device, devices: { uuid: [${a}, ${b}] } }`, 3],
  ])('a pool before them that takes %s of them leaves none', async (_, first, wanted) => {
    const lines = await pools({ first, second: `{ devices: { uuid: ${b.toLowerCase().replace('gpu', 'GPU')} } }` });
    expect(lines).toEqual([over('3:30: pools.second', 'pools.first and pools.second', wanted, 2)]);
  });

  test('one that asks for more than it names is told that alone', async () => {
    const lines = await pools({ x: `{ agents: 2, devices: { uuid: ${a} } }`, y: `{ devices: { uuid: ${a} } }` });
    expect(lines).toEqual([expect.stringContaining('pools.x.devices.uuid: names one device, but "agents" and "count" ask for 2')]);
  });

  test('are told so exactly when no sharing out gives each its number', () => {
    const names = ['g1', 'g2', 'g3', 'g4'];
    const pool = fc.record({ uuids: fc.subarray(names, { minLength: 1 }), agents: fc.integer({ min: 0, max: 3 }) });
    fc.assert(
      fc.property(fc.array(pool, { minLength: 1, maxLength: 4 }), (asked) => {
        const config = asked.map(({ uuids, agents }, at) => ({
          name: `p${at}`,
          agents,
          standby: true,
          devices: { ...oneDevice, uuids },
        }));
        const alone = config.some(({ agents, devices }) => agents > devices.uuids.length);
        fc.pre(!alone);
        const units = config.flatMap(({ agents, devices }) => Array.from({ length: agents }, () => devices.uuids));
        expect(overSubscriptions(config).length === 0).toBe(canShareOut(units, new Set()));
        for (const { wanted, named, others } of overSubscriptions(config)) {
          expect(wanted).toBeGreaterThan(named);
          expect(others.length).toBeGreaterThan(0);
        }
      }),
    );
  });
});

/** By trying everything. */
function canShareOut(units: readonly (readonly string[])[], taken: ReadonlySet<string>): boolean {
  const [first, ...rest] = units;
  if (first === undefined) return true;
  return first.some((name) => !taken.has(name) && canShareOut(rest, new Set([...taken, name])));
}

describe('keys about devices', () => {
  test.each([
    ['{ grant: cdi }', 'warning: pools.a.grant: is not used: "devices" is 0'],
    ['{ grant: cdi, devices: 1, runtime: process }', 'warning: pools.a.grant: is not used: "runtime" is process'],
    ['{ grant: cdi, devices: 1, containers: true }', 'warning: pools.a.grant: is not used: with "containers"'],
    ['{ grant: cdo, devices: 1 }', 'pools.a.grant: expected "auto", "request", "cdi" or "runtime", found "cdo"'],
    [
      '{ devices: { capabilities: [video, grafics] } }',
      'pools.a.devices.capabilities[1]: expected "graphics", "video" or "display", found "grafics"',
    ],
    ['{ devices: { capabilites: [video] } }', 'pools.a.devices.capabilites: unknown key; did you mean "capabilities"?'],
    ['{ devices: { mig: 1g10gb } }', 'pools.a.devices.mig: "1g10gb" is not true, false or a profile such as "1g.10gb"'],
    ['{ devices: { numa: 1 } }', 'pools.a.devices.numa: expected true or false, found 1'],
    [
      '{ devices: { count: 2, mig: true } }',
      'warning: pools.a.devices.count: is 2, but "mig" is true: a process can use one MIG instance only',
    ],
    ['{ image: { base: "debian:12", flavour: base } }', 'warning: pools.a.image.flavour: is not used: "base" is not auto'],
    [
      '{ image: { base: "debian:12", distribution: ubuntu22.04 } }',
      'warning: pools.a.image.distribution: is not used: "base" is not auto',
    ],
  ])('%s', async (pool, line) => {
    expect(await pools({ a: pool })).toEqual([expect.stringContaining(line)]);
  });

  test.each(['1g.10gb', '1c.3g.71gb', '1g.5gb+me', '2g.20gb+me.all', '1g.24gb-me'])('a profile may be %s', async (profile) => {
    expect(await pools({ a: `{ devices: { mig: ${profile} } }` })).toEqual([]);
  });

  test('are part of what a sandbox is made from', async () => {
    const { config, errors } = await folder.load(
      'pools: { a: { grant: cdi, devices: { capabilities: [video, graphics, video], numa: true } }, b: { devices: 2 } }\n',
    );
    expect(errors).toEqual([]);
    expect(config.pools.map((pool) => pool.recipe.grant)).toEqual([
      { way: 'cdi', capabilities: ['video', 'graphics'], numa: true },
      { way: 'auto', capabilities: [], numa: false },
    ]);
  });
});

describe('on_quarantine', () => {
  const withDevices = 'pools: { a: { devices: 1 } }\n';
  test('is a program with its arguments, and has ten minutes', async () => {
    const { config, errors } = await folder.load(`${withDevices}on_quarantine: [/sbin/reset, --retries, 3]\n`);
    expect(errors).toEqual([]);
    expect(config.onQuarantine).toEqual({ command: ['/sbin/reset', '--retries', '3'], timeout: 600_000 });
    expect((await folder.load(withDevices)).config.onQuarantine).toBeNull();
    const slower = await folder.load(`${withDevices}on_quarantine: [reset-gpu]\non_quarantine_timeout: 30m\n`);
    expect(slower.config.onQuarantine).toEqual({ command: ['reset-gpu'], timeout: 1_800_000 });
  });

  test.each([
    ['on_quarantine: "reset --all"', 'config.yml:2:16: on_quarantine: expected a list, found text'],
    ['on_quarantine: []', 'config.yml:2:16: on_quarantine: names no program; write [program, argument, …]'],
    [
      'on_quarantine: [bin/reset]',
      'on_quarantine: begins with "bin/reset", which is neither an absolute path nor a name on the PATH',
    ],
    ['on_quarantine: [/bin/x, { a: b }]', 'on_quarantine[1]: expected text, found a map'],
    ['on_quarantin: [/bin/x]', 'on_quarantin: unknown key; did you mean "on_quarantine"?'],
    ['on_quarantine_timeout: 5m', 'warning: on_quarantine_timeout: is not used: there is no "on_quarantine"'],
    ['{ on_quarantine: [/bin/x], on_quarantine_timeout: 0s }', 'on_quarantine_timeout: must be at least 1s, found "0s"'],
  ])('%s', async (line, said) => {
    const text = line.startsWith('{') ? line.slice(2, -2).replace(', on_', '\non_') : line;
    expect(await folder.check(`${withDevices}${text}\n`)).toEqual([expect.stringContaining(said)]);
  });

  test('without a pool that asks for devices is said to be in vain', async () => {
    expect(await folder.check('on_quarantine: [/bin/x]\n')).toEqual([
      'config.yml:1:1: warning: on_quarantine: is not used: no pool asks for "devices"',
    ]);
  });
});
