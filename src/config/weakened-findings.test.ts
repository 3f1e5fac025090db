import { afterAll, expect, it } from 'vitest';
import { Folder } from '../../test/kit/config.ts';
import { weakenedFindings } from './findings.ts';

const folder = new Folder();
afterAll(() => folder[Symbol.dispose]());

async function findings(pools: string) {
  const { config, errors } = await folder.load(`services: { s: { type: buildkite, token: { env: T } } }\npools: { ${pools} }\n`);
  expect(errors).toEqual([]);
  return weakenedFindings(config).map(({ level, subject, message }) => `${level} ${subject}: ${message}`);
}

it('names each pool, and what it gives away', async () => {
  expect(
    await findings(
      'a: { unsafe: { privileged: true, pid_host: true } }, b: { service: s, runtime: process, isolation: none, unsafe: { seccomp_unconfined: true } }',
    ),
  ).toEqual([
    'warning pool a: It sets "unsafe: { privileged: true }": its jobs can do everything on this host, and use all its devices.',
    expect.stringContaining('warning pool a: It sets "unsafe: { pid_host: true }": its jobs see the processes of this host'),
    expect.stringContaining('warning pool b: It sets "unsafe: { seccomp_unconfined: true }": its trusted jobs may use every'),
    'warning pool b: It sets "isolation: none": credentials of service s may be read by other jobs of this host.',
  ]);
  expect(await findings('c: { network: host, volumes: ["/var/run/docker.sock:/s"] }')).toEqual([
    'warning pool c: It sets "network: host": its jobs can reach everything that listens on this host.',
    'warning pool c: It sets "volumes: ["/var/run/docker.sock:…"]": its jobs can do everything on this host.',
  ]);
});

it('names a pool whose untrusted jobs have an engine, unless it lets none in', async () => {
  const pool = (rules: string) => `a: { service: s, containers: true, trust: { containers: allow${rules} } }`;
  expect(await findings(pool(''))).toEqual([
    'warning pool a: It sets "trust: { containers: allow }": untrusted jobs may make user namespaces, with which they reach more of the kernel.',
  ]);
  expect(await findings(pool(', forks: refuse, others: refuse'))).toEqual([]);
});

it('is silent where nothing is given away', async () => {
  expect(await findings('a: { service: s, unsafe: { privileged: false } }, b: {}')).toEqual([]);
});
