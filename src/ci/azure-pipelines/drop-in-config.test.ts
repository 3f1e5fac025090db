import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { emptyEnvironment, Folder, host } from '../../../test/kit/config.ts';
import { gpu, instance } from '../../../test/support/devices.ts';
import { checkName, type DropIn, dropInConfig, dropInFile, dropInVolumes, pollTime } from '../../cli/init/azure-drop-in.ts';
import { shareCards } from '../../cli/share-cards.ts';
import { types } from '../../cli/types.ts';
import { lookAtHost } from '../../config/host-look.ts';
import { checkConfig } from '../../config/load.ts';
import { type Device, type Inventory, noGpus } from '../../gpu/inventory.ts';
import type { AzureServiceConfig } from './type.ts';

const folder = new Folder();
afterAll(() => folder[Symbol.dispose]());
for (const name of ['data', 'ro']) mkdirSync(join(folder.path, name));
symlinkSync('data', join(folder.path, 'link'));

const cards = (n: number, more: Partial<Device> = {}): Inventory => ({
  ...noGpus,
  devices: Array.from({ length: n }, (_, at) => gpu(at, more)),
});

describe('agents and cards', () => {
  it.each([
    [2, 2, { count: 1, vendor: 'nvidia' }, '2 agents on 2 cards: each agent has 1 to itself.'],
    [2, 8, { count: 4, vendor: 'nvidia' }, '2 agents on 8 cards: each agent has 4 to itself.'],
    [3, 8, { count: 2, vendor: 'nvidia' }, '3 agents on 8 cards: each agent has 2 to itself, 2 are left over.'],
    [3, 2, { count: 1, vendor: 'nvidia', share: 2 }, '3 agents on 2 cards: up to 2 agents share one, and each agent sees one.'],
    [5, 1, { count: 1, vendor: 'nvidia', share: 5 }, '5 agents on 1 card: up to 5 agents share one'],
    [2, 0, 0, '2 agents without GPUs: this host has no NVIDIA card'],
    [0, 4, { count: 1, vendor: 'nvidia' }, '0 agents on 4 cards'],
  ])('%i agents and %i cards', (agents, count, devices, line) => {
    const shared = shareCards(agents, cards(count));
    expect(shared.devices).toEqual(devices);
    expect(shared.line).toContain(line);
    if (count > 0) expect(shared.line).toContain('The Python manager showed every agent every card.');
  });

  it("another owner's card does not count, and MIG instances count where no card is whole", () => {
    expect(shareCards(1, cards(1, { vendor: 'intel' })).devices).toBe(0);
    const split = gpu(1, { mig: { mode: 'enabled', pending: null } });
    const inventory = { ...noGpus, devices: [split, instance(1, split), instance(2, split), instance(3, split)] };
    expect(shareCards(1, inventory).devices).toEqual({ count: 1, vendor: 'nvidia', mig: true });
    expect(shareCards(4, inventory).devices).toEqual({ count: 1, vendor: 'nvidia', share: 2, mig: true });
  });

  it('a card that cannot be seen is not a missing card', () => {
    const finding = { level: 'error', code: 'tool-hung', subject: 'host', message: 'nvidia-smi hung.', hint: null } as const;
    expect(() => shareCards(2, { ...noGpus, complete: false, findings: [finding] })).toThrow(
      expect.objectContaining({ code: 'E_GPUS_UNSEEN', message: expect.stringContaining('nvidia-smi hung.') }),
    );
    expect(shareCards(2, { ...cards(2), complete: false }).devices).toEqual({ count: 1, vendor: 'nvidia' });
  });

  it('cards are shared only up to a limit', () => {
    expect(() => shareCards(200, cards(2))).toThrow(expect.objectContaining({ code: 'E_USAGE', hint: 'Type -n 128 or less.' }));
  });
});

describe('--volume', () => {
  it('is HOST:CONTAINER:VARIABLE, relative to where it was typed, read-only, and the third part is always the variable', () => {
    expect(dropInVolumes(['data:/a:A', './link:/b:ro', `${folder.path}/ro:/c:rw`], folder.path)).toEqual([
      { host: join(folder.path, 'data'), container: '/a', readOnly: true, variable: 'A', cache: null },
      { host: join(folder.path, 'data'), container: '/b', readOnly: true, variable: 'ro', cache: null },
      { host: join(folder.path, 'ro'), container: '/c', readOnly: true, variable: 'rw', cache: null },
    ]);
  });

  it.each([
    [['data:/a'], 'does not have three parts'],
    [['data:/a:A:ro'], 'does not have three parts'],
    [['data:/a:'], 'has an invalid variable name'],
    [['data:/a:A B'], 'has an invalid variable name'],
    [['data:/a:AZP_TOKEN'], 'sets AZP_TOKEN, which is reserved'],
    [['data:/a:A', 'ro:/b:A'], 'sets A again'],
    [['data:/a:A', 'ro:/a:B'], 'uses /a again'],
    [['data:a:A'], 'has a container path that must be absolute'],
    [['nowhere:/a:A'], 'nowhere, which is not a folder on this host'],
    [['file:/a:A'], 'file, which is not a folder on this host'],
  ])('%j is refused', (specs, why) => {
    writeFileSync(join(folder.path, 'file'), '');
    expect(() => dropInVolumes(specs, folder.path)).toThrow(
      expect.objectContaining({
        code: 'E_USAGE',
        message: expect.stringContaining(why),
        hint: expect.stringContaining('--volume HOST:'),
      }),
    );
  });
});

it('names of agents', () => {
  for (const good of ['lab', 'gpu-1.lab_x', 'a'.repeat(60)]) expect(() => checkName(good, 10)).not.toThrow();
  for (const bad of ['', '-x', 'a/b', 'a b', '{n}', 'a'.repeat(62)])
    expect(() => checkName(bad, 10)).toThrow(expect.objectContaining({ code: 'E_USAGE' }));
});

it('the service is never asked more often than every 2 s', () => {
  expect([0, 1, 2, 60].map(pollTime)).toEqual([2000, 2000, 2000, 60_000]);
});

describe('the config', () => {
  const base: DropIn = {
    url: 'https://dev.azure.com/acme',
    pool: 'gpu pool: "x" #1',
    agents: 4,
    name: 'lab',
    image: null,
    poll: null,
    volumes: [],
    cards: { devices: { count: 1, vendor: 'nvidia', share: 2 }, line: '' },
  };
  const cases: Record<string, DropIn> = {
    usual: base,
    full: {
      ...base,
      image: 'lab/azp:1',
      poll: 120_000,
      volumes: [
        { host: join(folder.path, 'data'), container: '/a', readOnly: true, variable: 'ro', cache: null },
        { host: join(folder.path, 'ro'), container: '/b b', readOnly: true, variable: 'B', cache: null },
      ],
      cards: { devices: 0, line: '' },
    },
    mig: { ...base, cards: { devices: { count: 1, vendor: 'nvidia', mig: true }, line: '' } },
  };

  it.each(Object.entries(cases))('%s: the printed file loads without a problem and says the same', async (_, given) => {
    const pat = folder.write('pat', 'hunter2');
    const token = { kind: 'file', path: pat, expires: null } as const;
    const env = emptyEnvironment();
    const typed = await checkConfig({ types, look: lookAtHost, env, host, instead: dropInConfig(given, token) });
    const printed = await folder.load(dropInFile(given, { file: pat }, 'made so'), { env, look: lookAtHost });
    for (const { errors, warnings } of [typed, printed]) expect([...errors, ...warnings]).toEqual([]);
    const {
      path,
      services: [service],
      ...same
    } = typed.config;
    const {
      path: file,
      services: [filed],
      ...fromFile
    } = printed.config;
    expect(path).toBe('the command line');
    expect(file).toContain('config.yml');
    expect(fromFile).toEqual(same);
    // A file cannot leave it open who makes an agent known.
    expect(filed).toEqual({ ...service, registration: 'manager' });
    expect((service as AzureServiceConfig).registration).toBe(given.image === null ? 'manager' : 'auto');
  });

  it('whose image has only a start script needs one line less commented', async () => {
    const pat = folder.write('pat', 'hunter2');
    const text = dropInFile({ ...base, image: 'me/azp' }, { file: pat }, null);
    const { config, errors, warnings } = await folder.load(text.replace('# registration', 'registration'), {
      env: emptyEnvironment(),
      look: lookAtHost,
    });
    expect(errors).toEqual([]);
    expect(warnings.map(({ message }) => message)).toEqual([expect.stringContaining('jobs may be able to read it')]);
    expect((config.services[0] as AzureServiceConfig).registration).toBe('image');
  });

  it('is what the Python manager did, as far as it was good', async () => {
    const token = { kind: 'memory', name: 'the command line', expires: null, read: () => 'hunter2' } as const;
    const { config } = await checkConfig({
      types,
      look: lookAtHost,
      env: emptyEnvironment(),
      host,
      instead: dropInConfig(cases.full ?? base, token),
    });
    expect(config).toMatchObject({
      onStop: 'end',
      services: [
        { url: 'https://dev.azure.com/acme', credential: { kind: 'pat', token }, pollEvery: 120_000, bootTimeout: 240_000 },
      ],
      pools: [
        {
          agents: 4,
          agentName: 'lab_{0..}',
          queue: 'gpu pool: "x" #1',
          runtime: 'docker',
          recipe: { image: 'lab/azp:1', oomScoreAdj: 1000, network: 'default' },
        },
      ],
    });
  });
});
