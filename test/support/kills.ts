/** A manager that is killed while a real runtime works for it, and started again: what the tests of kills have in common. */
import { chmodSync, mkdirSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { expect } from 'vitest';
import type { Boundary } from '../../src/manager/actions/action-runner.ts';
import { images } from './images.ts';
import { type Home, onejob } from './onejob.ts';
import { lacks } from './require.ts';

export const members = [
  { name: 'docker', missing: lacks('docker'), pool: `runtime: docker, image: "${images.base}"` },
  { name: 'bubblewrap', missing: lacks('bubblewrap'), pool: 'runtime: process' },
];

/** A job that leaves one file each time it begins; it ends by itself, by TERM, or only by KILL. */
export const job = {
  plain: 'mktemp -p /runs XXXXXX >/dev/null; echo done',
  polite: 'trap "exit 0" TERM; mktemp -p /runs XXXXXX >/dev/null; while :; do sleep 0.02; done',
  stubborn: 'trap "" TERM; mktemp -p /runs XXXXXX >/dev/null; while :; do sleep 0.02; done',
};

/** A home whose jobs leave their files in one folder; `runs` counts them. */
export async function homeOfRuns(pool: string): Promise<{ here: Home; runs: () => number }> {
  const here = await onejob();
  const folder = join(here.dir, 'runs');
  mkdirSync(folder);
  chmodSync(folder, 0o777);
  here.configure(`pools: { default: { agents: 1, ${pool}, stop_grace: 200ms, volumes: ["${folder}:/runs:rw"] } }`);
  here.env.ONEJOB_CONFIG = join(here.dir, 'config.yml');
  return { here, runs: () => readdirSync(folder).length };
}

/** Kills a manager there, starts another, and expects one run, one result, and nothing left. */
export async function killAt(boundary: Boundary, pool: string): Promise<void> {
  const { here, runs } = await homeOfRuns(pool);
  await using _ = here;
  const stops = boundary.startsWith('terminate') || boundary.startsWith('kill');
  const script = boundary.startsWith('kill') ? job.stubborn : stops ? job.polite : job.plain;
  // Time enough to have begun on a slow machine, too.
  const timeout = stops ? ['--timeout', '2s'] : [];
  const doomed = here.cli(['up'], { env: { ONEJOB_CRASH_AT: boundary } });
  await doomed.says(/onejob is up/);
  const submit = () => here.run('--no-workspace', ...timeout, '--', 'sh', '-c', script);
  // A standby is prepared, and so the manager killed, before anybody can hand in a job.
  const early = boundary.startsWith('prepare') ? null : submit();
  expect((await doomed.ended).signal).toBe('SIGKILL');
  const daemon = await here.up();
  const ended = await (early ?? submit()).ended;
  expect(ended.code, ended.stderr).toBe(stops ? 124 : 0);
  expect(runs()).toBe(1);
  expect(await here.api.jobs({ all: true, pool: null })).toHaveLength(1);
  expect((await here.run('--no-workspace', '--', 'sh', '-c', job.plain).ended).stdout).toBe('done\n');
  await daemon.stop();
  expect((await here.census()).left).toEqual([]);
}
