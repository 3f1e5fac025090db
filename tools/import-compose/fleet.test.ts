/** A fleet of 23 agents on 6 hosts, as its owner sees it after the import: short files, and each agent with its own device. */
import { cpSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { parse } from 'yaml';
import { plannedAgents } from '../../src/cli/plan.ts';
import { readRecording } from '../../src/gpu/recording.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { loadText, type Tried, tryImport } from './fleets.ts';

const fixture = join(import.meta.dirname, 'fixture');
const examples = join(import.meta.dirname, '../../examples/compose-fleet');
let home: Scratch;
let found: Tried;

beforeAll(async () => {
  home = scratch();
  cpSync(fixture, join(home.path, 'all'), { recursive: true });
  found = await tryImport(join(home.path, 'all'));
});
afterAll(() => home[Symbol.dispose]());

test('one config per host; the split ones are called by their host names', () => {
  expect(found.groups).toEqual([
    'arc.example.org: arc.example.org',
    'bench1: bench1',
    `quark: ${Array.from({ length: 18 }, (_, n) => `quark.${n}`).join(' ')}`,
    'radeon1.example.org: radeon1.example.org',
    'radeon2.example.org: radeon2.example.org',
  ]);
  expect(found.refused).toEqual([]);
});

test.each(['arc.example.org', 'bench1', 'quark', 'radeon1.example.org', 'radeon2.example.org'])(
  'examples/compose-fleet/%s.yml is what comes out',
  (name) => {
    const config = found.hosts.find((host) => host.name === name)?.config;
    expect(config).toBe(readFileSync(join(examples, `${name}.yml`), 'utf8'));
  },
);

test('the eighteen agents of the big host are five pools, on little more than a page', () => {
  const config = found.hosts.find(({ name }) => name === 'quark')?.config ?? '';
  expect(config.split('\n').length).toBeLessThan(66);
  expect(Object.keys(found.pools('quark'))).toEqual(['upload', 'a100', 'rtx5000', 'multigpu', 'exclusive']);
  expect(found.pools('quark').upload).toMatchObject({ name: 'quark.0', queue: 'upload', devices: 0, priority: 0, cpus: 1 });
  expect(found.pools('quark').a100).toMatchObject({ name: 'quark.{1..}', agents: 14, tags: 'cap=sm_80,gpu=a100,cap=recent' });
  expect(config.split('\n').every((line) => line.length <= 130)).toBe(true);
});

test('what it could not carry over is said with its place, and nothing else is', () => {
  expect(found.warnings).toEqual([
    expect.stringMatching(/^fleet\/metal\.1: has no Compose file/),
    'image/Dockerfile:11: COPY hooks /hooks: not carried over',
  ]);
});

test.each(['quark', 'bench1'])('on a recording of %s each agent has exactly the devices its Compose file names', async (name) => {
  const inventory = await readRecording(join(fixture, 'recordings', `${name}.txt`));
  const config = found.hosts.find((host) => host.name === name)?.config ?? '';
  const { config: loaded, errors } = await loadText(join(home.path, `${name}.yml`), config);
  expect(errors).toEqual([]);
  const agents = plannedAgents(loaded, inventory.devices);
  expect(agents.map(({ agent }) => agent).toSorted()).toEqual(
    found.hosts
      .find((host) => host.name === name)
      ?.agents.map((one) => one.name)
      .toSorted(),
  );
  for (const { agent, devices, lacks, queue, priority, tags } of agents) {
    expect(lacks).toBe(false);
    const written = parse(readFileSync(join(fixture, 'fleet', agent, 'docker-compose.yml'), 'utf8')).services.buildkite;
    const named: string | undefined = written.environment.NVIDIA_VISIBLE_DEVICES;
    const all = written.runtime === 'nvidia' ? inventory.devices.map(({ uuid }) => uuid) : [];
    expect(devices.map(({ uuid }) => uuid)).toEqual(named === undefined ? all : named.split(','));
    const words: string[] = written.command;
    const had = words
      .find((word) => word.startsWith('--tags='))
      ?.slice('--tags='.length)
      .split(',');
    expect([`queue=${queue}`, ...tags]).toEqual(had);
    expect(priority).toBe(Number(words.find((word) => word.startsWith('--priority='))?.slice('--priority='.length) ?? 0));
  }
});

test('nobody opens a file of tokens, and what is in it comes out nowhere', async () => {
  const root = join(home.path, 'with-token');
  cpSync(fixture, root, { recursive: true });
  const { writeFileSync } = await import('node:fs');
  writeFileSync(join(root, 'fleet', 'token.env'), 'BUILDKITE_AGENT_TOKEN=canary-4711\n');
  writeFileSync(join(root, 'fleet', 'quark.3', '.env'), 'BUILDKITE_AGENT_TOKEN=canary-4712\n');
  expect(JSON.stringify(await tryImport(root))).not.toContain('canary');
});

describe('hosts', () => {
  test('are what a person says they are', async () => {
    const rules = [
      { name: 'west', glob: 'radeon.lab.*' },
      { name: 'west', glob: 'bench1' },
    ];
    const { groups, refused, warnings } = await tryImport(join(home.path, 'all'), [...rules, { name: 'east', glob: 'nothing-*' }]);
    expect(groups).toContain('west: bench1 radeon1.example.org radeon2.example.org');
    expect(refused).toEqual([]);
    expect(warnings).toContainEqual(expect.stringMatching(/radeon2.*claimed twice|claimed twice.*radeon1/));
    expect(warnings).toContain('--host: east=nothing-* matches no agent');
  });
});
