/** Any content of Compose files: nothing throws, and the result can be loaded. */
import { mkdirSync, rmSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { stringify } from 'yaml';
import { anyCharacter } from '../../test/support/any-character.ts';
import { scratch } from '../../test/support/scratch.ts';
import { composeOf, tryImport, writeFleet } from './fleets.ts';

const odd = fc.oneof(
  fc.constantFrom<unknown>(
    null,
    '',
    0,
    -1,
    1.5,
    true,
    'none',
    'all',
    'host',
    'x'.repeat(80),
    'a b',
    'a\nb',
    '{name}',
    '${X}',
    '$$',
    'é',
    [],
    {},
  ),
  fc.string({ maxLength: 12 }),
  fc.integer({ min: -5, max: 100_000 }),
);
const key = fc.constantFrom(
  'A',
  'JULIA_CPU_THREADS',
  'NVIDIA_VISIBLE_DEVICES',
  'BUILDKITE_AGENT_NAME',
  'BUILDKITE_AGENT_TAGS',
  'a b',
  'ROCR_VISIBLE_DEVICES',
  '1x',
);
const map = fc.dictionary(key, odd, { maxKeys: 4 });
const volume = fc.oneof(
  odd,
  fc.constantFrom(
    '/a:/root',
    '/a:/b',
    '/c:/b',
    'v:/w',
    './x:/y:ro',
    '/:/host',
    '/a/b.1:/root/.cache',
    '/p:/proc',
    '/d:/workspace',
    '~/x:/z',
    '/a:b',
  ),
  fc.record({ type: odd, source: odd, target: odd, read_only: odd }, { requiredKeys: [] }),
);
const word = fc.oneof(
  odd,
  fc.constantFrom(
    'start',
    '--name=b.1',
    '--name=ü!',
    '--tags=queue=a,b,c=d',
    '--tags=queue=a b',
    '--priority=5000',
    '--priority',
    '-1',
    '--spawn=3',
    '--hooks-path=/root/h',
    '--queue=',
    '--endpoint=http://x',
    '--shell=/bin/sh -e',
  ),
);
const device = fc.oneof(
  odd,
  fc.constantFrom('/dev/dri', '/dev/kfd:/dev/kfd', '/dev/nvidia0', 'nvidia.com/gpu=all', 'nvidia.com/gpu=GPU-1234', '/dev/fuse'),
);
const service = fc.record(
  {
    image: odd,
    build: fc.oneof(odd, fc.record({ context: odd, args: fc.oneof(odd, map), dockerfile: odd }, { requiredKeys: [] })),
    command: fc.oneof(odd, fc.array(word, { maxLength: 5 })),
    entrypoint: odd,
    environment: fc.oneof(
      odd,
      map,
      fc.array(fc.oneof(odd, fc.constantFrom('A=1', 'NVIDIA_VISIBLE_DEVICES=0,1', 'B')), { maxLength: 3 }),
    ),
    env_file: fc.oneof(odd, fc.constant(['../token.env'])),
    volumes: fc.oneof(odd, fc.array(volume, { maxLength: 4 })),
    devices: fc.oneof(odd, fc.array(device, { maxLength: 3 })),
    runtime: fc.oneof(odd, fc.constant('nvidia')),
    hostname: odd,
    extends: odd,
    deploy: fc.oneof(
      odd,
      fc.record({
        replicas: odd,
        resources: fc.oneof(odd, fc.record({ limits: fc.record({ cpus: odd, memory: odd }), reservations: odd })),
      }),
    ),
    cpus: odd,
    mem_limit: odd,
    shm_size: odd,
    ulimits: fc.oneof(odd, fc.record({ nofile: odd, 'a b': odd })),
    cap_add: fc.oneof(odd, fc.array(fc.oneof(odd, fc.constantFrom('ALL', 'sys_ptrace')))),
    tmpfs: fc.oneof(odd, fc.constantFrom('/tmp', '/run:size=1m', ['/tmp', '/tmp'])),
    user: odd,
    network_mode: odd,
    pid: odd,
    privileged: odd,
    security_opt: odd,
    oom_score_adj: odd,
    stop_grace_period: odd,
    labels: odd,
  },
  { requiredKeys: [] },
);

test('S: every fleet is read, and every config that comes out can be loaded', async () => {
  using home = scratch();
  await fc.assert(
    fc.asyncProperty(fc.array(fc.oneof(service, odd), { minLength: 1, maxLength: 3 }), async (services) => {
      const root = join(home.path, 'f');
      rmSync(root, { recursive: true, force: true });
      mkdirSync(root);
      writeFleet(
        root,
        Object.fromEntries(services.map((one, n) => [`b.${n}/compose.yml`, stringify({ services: { buildkite: one } })])),
      );
      const { refused, warnings } = await tryImport(root);
      expect(refused).toEqual([]);
      expect(warnings.filter((line) => line.includes('would be refused'))).toEqual([]);
    }),
    { numRuns: 120 },
  );
});

test('bytes that are not a Compose file at all', async () => {
  using home = scratch();
  await fc.assert(
    fc.asyncProperty(
      fc.string({ maxLength: 200, unit: anyCharacter }),
      fc.constantFrom('', 'services:\n', 'services:\n  a:\n    '),
      async (text, head) => {
        writeFleet(join(home.path, 'g'), { 'a/compose.yml': head + text });
        expect((await tryImport(join(home.path, 'g'))).refused).toEqual([]);
      },
    ),
    { numRuns: 150 },
  );
});

test.each([
  [
    'a merge of itself',
    'services:\n  a: &a\n    <<: *a\n    command: start\n',
    /contains itself|cannot be read as YAML|is not YAML/,
  ],
  ['an alias of what it is in', 'services: &s\n  buildkite: *s\n', /contains itself/],
  ['a great many brackets', `services: ${'['.repeat(20_000)}`, /is not YAML/],
  [
    'aliases that would fill the memory',
    `${bomb()}services: { a: { command: [ start ], environment: *a9 } }\n`,
    /cannot be read as YAML/,
  ],
  [
    'services that extend each other',
    'services:\n  b: { extends: c, command: start }\n  c: { extends: b, command: start }\n',
    /which it extends, was not found/,
  ],
  [
    'names that every object has',
    'services:\n  constructor: { command: [start], environment: { toString: z, __proto__: x } }\n',
    /__proto__/,
  ],
])('%s', async (_, text, why) => {
  using home = scratch();
  writeFleet(join(home.path, 'h'), { 'a/compose.yml': text });
  const { warnings, refused } = await tryImport(join(home.path, 'h'));
  expect(refused).toEqual([]);
  expect(warnings.join('\n')).toMatch(why);
});

test('links that lead in circles, and a folder that is called like a file', async () => {
  using home = scratch();
  const root = join(home.path, 'i');
  writeFleet(root, { 'a/compose.yml': composeOf('a'), 'b/compose.yml/': '' });
  symlinkSync(root, join(root, 'loop'));
  symlinkSync('/nonexistent', join(root, 'a', 'docker-compose.yml'));
  const { groups, refused } = await tryImport(root);
  expect({ groups, refused }).toEqual({ groups: ['a: a'], refused: [] });
});

/** Each list holds the one before it nine times. */
function bomb(): string {
  return Array.from({ length: 10 }, (_, n) => `a${n}: &a${n} [${Array(9).fill(n === 0 ? 'x' : `*a${n - 1}`)}]\n`).join('');
}
