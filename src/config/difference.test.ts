import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { scratch } from '../../test/support/scratch.ts';
import { types } from '../cli/types.ts';
import { differences } from './difference.ts';
import { readEnvironment } from './environment.ts';
import { checkConfig } from './load.ts';

async function between(before: string, after: string): Promise<string[]> {
  using here = scratch();
  const read = async (text: string) => {
    const config = join(here.path, 'config.yml');
    writeFileSync(config, text);
    const { config: found, errors } = await checkConfig({
      types,
      flags: { config },
      env: readEnvironment({ HOME: here.path }),
      look: null,
    });
    expect(errors).toEqual([]);
    return found;
  };
  return differences(await read(before), await read(after), types);
}

const pool = (more: string): string => `pools: { build: { agents: 2, runtime: process${more} } }`;

test.each<[string, string, string[]]>([
  [pool(''), `# a comment\n${pool('')}`, []],
  [pool(''), pool(', cpus: 2'), ['pool build: cpus (2 instead of none) changed: standbys are renewed now, agents after their job']],
  [
    pool(', timeout: 90m, hold_failed: 30m'),
    pool(', timeout: 1h'),
    ['pool build: timeout (1h instead of 1h30m), hold_failed (none instead of 30m) changed'],
  ],
  [
    pool(', env: { TOKEN: old }'),
    pool(', env: { TOKEN: new }'),
    ['pool build: env changed: standbys are renewed now, agents after their job'],
  ],
  [
    pool(''),
    'pools: { build: { agents: 1, runtime: process }, gpu: { agents: per-device, devices: 1, runtime: process } }',
    ['pool build: 1 slot instead of 2', 'pool gpu: added, a slot for each device'],
  ],
  [
    pool(''),
    'pools: { other: { agents: 1, runtime: process } }',
    ['pool build: removed; its running jobs continue to their end', 'pool other: added, 1 slot'],
  ],
  ['pools: { a: { agents: 1 }, b: { agents: 1 } }', 'pools: { b: { agents: 1 }, a: { agents: 1 } }', ['order of pools: changed']],
  [
    pool(''),
    `{ keep_jobs: 3d, on_stop: drain, ${pool('')} }`,
    ['keep_jobs (3d instead of 7d), on_stop (drain instead of end): changed'],
  ],
  [
    pool(', memory: 1GiB, read_only: true'),
    pool(', memory: 1.5GiB'),
    [
      'pool build: memory (1536MiB instead of 1GiB), read_only (false instead of true) changed: standbys are renewed now, agents after their job',
    ],
  ],
  [
    'pools: { build: { agents: 2 } }',
    pool(', hold_failed: 30m'),
    [
      'pool build: runtime (process instead of best) changed: standbys are renewed now, agents after their job; hold_failed (30m instead of none) changed',
    ],
  ],
  [
    'pools: { build: { agents: 2 } }',
    'pools: { build: { agents: 2, runtime: docker } }',
    ['pool build: runtime (docker instead of best) changed'],
  ],
  [pool(''), pool(', name: "process{n}"'), ['pool build: name changed']],
  [pool(''), `{ disk: { min_free: 20% }, ${pool('')} }`, ['disk.min_free (20% instead of 10%): changed']],
])('from %s to %s', async (before, after, words) => {
  expect(await between(before, after)).toEqual(words);
});
