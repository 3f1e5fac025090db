/**
 * S3, S4, S5, S7 against a real runtime: the manager is killed at every boundary of intent, effect and record, and at
 * random moments, then started again. Whatever it was doing, each job runs at most once and has one result, and nothing
 * is left over.
 */
import { chmodSync, mkdirSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import type { Boundary } from '../../src/pools/executors.ts';
import { images } from '../support/images.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

const members = [
  { name: 'docker', missing: lacks('docker'), pool: `runtime: docker, image: "${images.base}"` },
  { name: 'bubblewrap', missing: lacks('bubblewrap'), pool: 'runtime: process' },
];

// Not `register` and `prove`: no service of this version binds early, and none of its pools has devices.
const acts = ['prepare', 'release', 'terminate', 'kill', 'settle', 'clear'] as const;
const boundaries: Boundary[] = acts.flatMap((act) => [`${act}.intent`, `${act}.effect`, `${act}.record`] as const);

/** A job that leaves one file each time it begins; it ends by itself, by TERM, or only by KILL. */
const job = {
  plain: 'mktemp -p /runs XXXXXX >/dev/null; echo done',
  polite: 'trap "exit 0" TERM; mktemp -p /runs XXXXXX >/dev/null; while :; do sleep 0.02; done',
  stubborn: 'trap "" TERM; mktemp -p /runs XXXXXX >/dev/null; while :; do sleep 0.02; done',
};

async function home(pool: string): Promise<{ here: Home; runs: () => number }> {
  const here = await onejob();
  const folder = join(here.dir, 'runs');
  mkdirSync(folder);
  chmodSync(folder, 0o777);
  here.configure(`pools: { default: { agents: 1, ${pool}, stop_grace: 200ms, volumes: ["${folder}:/runs:rw"] } }`);
  here.env.ONEJOB_CONFIG = join(here.dir, 'config.yml');
  return { here, runs: () => readdirSync(folder).length };
}

describe.each(members)('on $name', ({ missing, pool }) => {
  test.skipIf(missing).each(boundaries)('killed at %s', async (boundary) => {
    const { here, runs } = await home(pool);
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
  });

  test.skipIf(missing)('killed at 25 random moments under a stream of jobs', async () => {
    const { here, runs } = await home(pool);
    await using _ = here;
    const ids: string[] = [];
    let daemon = await here.up();
    for (let i = 0; i < 25; i++) {
      for (let n = 0; n < 3; n++) {
        const detached = await here.run('--no-workspace', '--detach', '--', 'sh', '-c', job.plain).ended;
        ids.push(detached.stdout.trim());
      }
      await new Promise((resolve) => setTimeout(resolve, Math.random() * 300));
      await daemon.kill();
      daemon = await here.up();
    }
    const jobs = await Promise.all(ids.map((id) => here.api.settled(id)));
    expect(jobs.map((one) => one.result)).toEqual(ids.map(() => ({ kind: 'code', code: 0 })));
    expect(runs()).toBe(ids.length);
    await daemon.stop();
    expect((await here.census()).left).toEqual([]);
  });
});
