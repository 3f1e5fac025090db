import { expect, test } from 'vitest';
import { cardMounts, cardTexts } from './cards-inside.ts';
import { noCards } from './engine-cards.ts';

const node = (path: string) => ({ from: path, to: path });
const cards = {
  nodes: ['/dev/nvidiactl', '/dev/nvidia0', '/dev/nvidia-caps/nvidia-cap1', '/dev/nvidia-caps/nvidia-cap2'].map(node),
  own: [
    ['MIG-1', ['/dev/nvidia0', '/dev/nvidia-caps/nvidia-cap1']],
    ['MIG-2', ['/dev/nvidia0', '/dev/nvidia-caps/nvidia-cap2']],
  ],
  files: [
    { from: '/run/driver/usr/lib/libcuda.so.580', to: '/usr/lib/libcuda.so.580' },
    { from: '/usr/bin/nvidia-smi', to: '/usr/bin/nvidia-smi' },
  ],
  links: [{ from: '/usr/lib/libcuda.so.580', to: '/usr/lib/libcuda.so.1' }],
  env: ['A=b'],
} as const;

test('each card is there by its name and its place, with what all of them need, and nothing of another', () => {
  const texts = cardTexts(cards);
  const files = [
    '/var/lib/driver/usr/lib/libcuda.so.580 /usr/lib/libcuda.so.580',
    '/var/lib/driver/usr/bin/nvidia-smi /usr/bin/nvidia-smi',
    '/var/lib/driver/usr/lib/libcuda.so.580 /usr/lib/libcuda.so.1',
  ];
  const own = (...names: readonly string[]) =>
    [...['nvidiactl', 'nvidia0', ...names].map((name) => `/dev/${name} /dev/${name}`), ...files, ''].join('\n');
  for (const name of ['MIG-2', '1']) expect(texts.get(`names/${name}`)).toBe(own('nvidia-caps/nvidia-cap2'));
  expect(texts.get('names/all')).toBe(own('nvidia-caps/nvidia-cap1', 'nvidia-caps/nvidia-cap2'));
  expect([...texts.keys()].filter((name) => name.startsWith('names/')).sort()).toEqual([
    ...['names/0', 'names/1', 'names/MIG-1', 'names/MIG-2', 'names/all'],
  ]);
});

test('the specification inside names the same', () => {
  const spec = JSON.parse(cardTexts(cards).get('cdi/nvidia.json') ?? '');
  expect(spec.devices.map(({ name }: { name: string }) => name)).toEqual(['MIG-1', '0', 'MIG-2', '1', 'all']);
  expect(spec.devices[0].containerEdits.deviceNodes).toEqual([{ path: '/dev/nvidia0' }, { path: '/dev/nvidia-caps/nvidia-cap1' }]);
  const { deviceNodes, env, mounts, hooks } = spec.containerEdits;
  expect({ deviceNodes, env, hooks }).toEqual({
    deviceNodes: [{ path: '/dev/nvidiactl' }],
    env: ['A=b'],
    hooks: [{ hookName: 'createContainer', path: '/var/lib/cards/hook', args: ['hook', 'ldcache'] }],
  });
  expect(mounts).toContainEqual({
    hostPath: '/var/lib/driver/usr/lib/libcuda.so.580',
    containerPath: '/usr/lib/libcuda.so.1',
    options: ['ro', 'nosuid', 'nodev', 'bind'],
  });
});

test('everything is mounted read-only, and nothing for an agent without cards', () => {
  const mounts = cardMounts('/s/a1', cards);
  expect(mounts.every(({ ReadOnly }) => ReadOnly)).toBe(true);
  expect(mounts.map(({ Source, Target }) => `${Source} ${Target}`)).toEqual([
    '/s/a1/cards /var/lib/cards',
    '/s/a1/cards/cdi /etc/cdi',
    '/s/a1/cards/hook /usr/bin/nvidia-container-runtime-hook',
    '/run/driver/usr/lib/libcuda.so.580 /var/lib/driver/usr/lib/libcuda.so.580',
    '/usr/bin/nvidia-smi /var/lib/driver/usr/bin/nvidia-smi',
  ]);
  expect(cardMounts('/s/a1', noCards)).toEqual([]);
});
