/** What is taken of the specifications that NVIDIA's tool writes. */
import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { stringify } from 'yaml';
import { recipe } from '../../../test/kit/docker-runtime.ts';
import { specOf } from '../../../test/kit/runtime-contract/contract.ts';
import { leased } from '../../../test/kit/runtimes.ts';
import { scratch } from '../../../test/support/scratch.ts';
import type { LeasedDevice } from '../../ports/runtime.ts';
import { cardsObstacle, cardsOf, noCards } from './engine-cards.ts';

const asked = (...devices: readonly LeasedDevice[]) => specOf({ ...recipe, containers: { image: 'e:1' } }, { devices });
const node = (path: string, more = {}) => ({ path, hostPath: '/dev/null', major: 1, minor: 3, permissions: 'rwm', ...more });

interface Edits {
  readonly deviceNodes?: readonly object[];
  readonly mounts?: readonly object[];
  readonly env?: readonly string[];
  readonly hooks?: readonly object[];
}

/** A specification as `nvidia-ctk cdi generate` 1.18 writes it. */
const specification = (devices: Readonly<Record<string, Edits>>, containerEdits: Edits = {}) => ({
  cdiVersion: '0.7.0',
  kind: 'nvidia.com/gpu',
  devices: Object.entries(devices).map(([name, edits]) => ({ name, containerEdits: edits })),
  containerEdits,
});

/** Folders with these files, in the order in which they count. */
function host(...folders: readonly Readonly<Record<string, object | string>>[]) {
  const dir = scratch();
  onTestFinished(() => dir[Symbol.dispose]());
  return folders.map((files, at) => {
    const folder = join(dir.path, String(at));
    mkdirSync(folder);
    for (const [name, content] of Object.entries(files))
      writeFileSync(join(folder, name), typeof content === 'string' ? content : stringify(content));
    return folder;
  });
}

const [a, b] = [
  leased({ uuid: 'GPU-a', minor: 0, pciId: '0000:c1:00.0' }),
  leased({ uuid: 'GPU-b', minor: 1, pciId: '0000:01:00.0' }),
];

test('cards have their nodes and what all of them need, in the order in which tools count them', async () => {
  const common = { deviceNodes: [node('/dev/nvidiactl')], env: ['NVIDIA_VISIBLE_DEVICES=void', 'NVIDIA_CTK_LIBCUDA_DIR=/usr/lib'] };
  const devices = {
    '0': { deviceNodes: [node('/dev/nvidia1')] },
    'gpu-A': { deviceNodes: [node('/dev/nvidia0'), { path: '/dev/zero' }] },
    'GPU-b': { deviceNodes: [node('/dev/nvidia1')] },
    'GPU-c': { deviceNodes: [node('/dev/nvidia2')], mounts: [{ hostPath: '/nowhere', containerPath: '/nowhere' }] },
    all: { deviceNodes: [node('/dev/nvidia2')] },
  };
  const [folder = ''] = host({ 'nvidia.yaml': specification(devices, common), 'other.json': { kind: 'v/c' }, 'no.yaml': 'a: [' });
  expect(await cardsOf(asked(a, b), [folder])).toEqual({
    ...noCards,
    nodes: [
      { from: '/dev/null', to: '/dev/nvidiactl' },
      { from: '/dev/null', to: '/dev/nvidia1' },
      { from: '/dev/null', to: '/dev/nvidia0' },
      { from: '/dev/zero', to: '/dev/zero' },
    ],
    own: [
      ['GPU-b', ['/dev/nvidia1']],
      ['GPU-a', ['/dev/nvidia0', '/dev/zero']],
    ],
    env: ['NVIDIA_CTK_LIBCUDA_DIR=/usr/lib'],
  });
});

test('files of the driver go along with their links; services of the host, hooks and what is nothing of a card do not', async () => {
  const [folder = '', lib = ''] = host({}, { 'libcuda.so.580.1': 'x', 'libcuda.so.9': 'y', 'nvidia-smi': 'z' });
  symlinkSync('libcuda.so.580.1', join(lib, 'libcuda.so.1'));
  symlinkSync('libcuda.so.1', join(lib, 'libcuda.so'));
  symlinkSync('libcuda.so.9', join(lib, 'libcuda.so.8'));
  symlinkSync('nvidia-smi', join(lib, 'smi'));
  const mount = (name: string, to: string) => ({ hostPath: join(lib, name), containerPath: `${to}/${name}`, options: ['ro'] });
  const mounts = [
    mount('libcuda.so.580.1', '/usr/lib64'),
    mount('nvidia-smi', '/usr/bin'),
    { hostPath: '/dev/null', containerPath: '/run/nvidia-persistenced/socket' },
  ];
  const hooks = [{ hookName: 'createContainer', path: '/usr/bin/nvidia-cdi-hook', args: ['nvidia-cdi-hook', 'update-ldcache'] }];
  const edits = { deviceNodes: [node('/dev/nvidia0')] };
  writeFileSync(
    join(folder, 'n.json'),
    JSON.stringify(specification({ 'GPU-a': edits }, { mounts: [...mounts, { hostPath: lib, containerPath: '/l' }], hooks })),
  );
  const { files, links } = await cardsOf(asked(a), [folder]);
  expect(files).toEqual([
    { from: join(lib, 'libcuda.so.580.1'), to: '/usr/lib64/libcuda.so.580.1' },
    { from: join(lib, 'nvidia-smi'), to: '/usr/bin/nvidia-smi' },
  ]);
  expect(links.toSorted((one, other) => one.to.localeCompare(other.to))).toEqual([
    { from: '/usr/lib64/libcuda.so.580.1', to: '/usr/lib64/libcuda.so' },
    { from: '/usr/lib64/libcuda.so.580.1', to: '/usr/lib64/libcuda.so.1' },
  ]);
});

test('the first folder that names a card counts', async () => {
  const of = (path: string) => ({ 'n.yaml': specification({ 'GPU-a': { deviceNodes: [node(path)] } }) });
  expect((await cardsOf(asked(a), host({}, of('/dev/nvidia3'), of('/dev/nvidia0')))).own).toEqual([['GPU-a', ['/dev/nvidia3']]]);
});

const refused: readonly [string, Edits, string][] = [
  [
    'a node that is gone',
    { deviceNodes: [{ path: '/dev/nvidia77' }] },
    '/dev/nvidia77, which its CDI specification names, is not there',
  ],
  [
    'a node with another number',
    { deviceNodes: [node('/dev/nvidia0', { minor: 5 })] },
    '/dev/null, which its CDI specification names, is another device',
  ],
  [
    'a node that is a file',
    { deviceNodes: [{ path: '/dev/nvidia0', hostPath: '/etc/passwd' }] },
    '/etc/passwd, which its CDI specification names, is another',
  ],
  [
    'a file that is gone',
    { mounts: [{ hostPath: '/nowhere/libcuda.so.1', containerPath: '/usr/l' }] },
    '/nowhere/libcuda.so.1, which its CDI',
  ],
  [
    'a mount into /proc',
    { mounts: [{ hostPath: '/etc/passwd', containerPath: '/proc/driver/nvidia/params' }] },
    'its CDI specification mounts /proc/driver/nvidia/params, and an engine with such a mount can start no containers',
  ],
  ['no card of that name', {}, 'names GPU-a'],
  ['a path that leads elsewhere', { deviceNodes: [node('/dev/../etc/x')] }, 'names GPU-a'],
];
test.each(refused)('%s is refused with the reason', async (_, edits, why) => {
  const [folder = ''] = host({ 'n.yaml': specification(Object.keys(edits).length === 0 ? {} : { 'GPU-a': edits }) });
  await expect(cardsOf(asked(a), [folder])).rejects.toMatchObject({
    code: 'E_DEVICES_REFUSED',
    message: expect.stringContaining(why),
    hint: expect.stringContaining(`--output=${why.includes('GPU-a') ? '/etc/cdi/nvidia.yaml' : join(folder, 'n.yaml')}"`),
  });
});

test('a card without a node is refused, and cards of others need no specification', async () => {
  await expect(cardsOf(asked({ ...a, minor: null }), [])).rejects.toMatchObject({
    message: expect.stringContaining('no node of GPU-a'),
  });
  expect(await cardsOf(asked({ ...a, vendor: 'amd' }), [])).toBe(noCards);
});

test('a host with a card and no specification says what to type; one without a card has nothing to say', async () => {
  const why =
    'there is no CDI specification of NVIDIA\'s cards; as root, type "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"';
  expect(await cardsObstacle(host({ 'other.yaml': { kind: 'v/c' } }), '/dev/null')).toBe(why);
  expect(await cardsObstacle([], '/nowhere')).toBeNull();
  expect(await cardsObstacle(host({ 'n.yaml': specification({ 'GPU-a': {} }) }), '/dev/null')).toBeNull();
});
