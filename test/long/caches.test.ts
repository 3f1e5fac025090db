/** Named caches, with a real daemon and real containers: kept from job to job, within their limit. */
import { readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { images } from '../support/images.ts';
import { onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

test.skipIf(lacks('docker'))('a named cache outlives agents and the daemon, and loses what was not used for longest', async () => {
  const pool = `agents: 1, runtime: docker, image: "${images.base}", caches: ["depot:/depot:DEPOT"], cache_limit: 2MiB, user: "4711"`;
  await using here = await onejob({ config: `pools: { default: { ${pool} } }` });
  let daemon = await here.up();
  const job = async (script: string) => {
    const ended = await here.run('--no-workspace', '--', 'sh', '-c', script).ended;
    expect(ended).toMatchObject({ code: 0 });
    return ended.stdout;
  };
  await job('touch "$DEPOT/kept"; mkdir "$DEPOT/old"; head -c 1500000 /dev/zero | tr "\\0" x > "$DEPOT/old/file"');
  expect(await job('ls /depot; touch -d @1000000000 /depot/old /depot/old/file')).toBe('kept\nold\n');
  await daemon.stop();
  daemon = await here.up();
  expect(await job('ls /depot; head -c 1500000 /dev/zero | tr "\\0" x > /depot/new')).toBe('kept\nold\n');
  const [agent = ''] = readdirSync(join(here.stateDir, 'caches/default'));
  const depot = join(here.stateDir, 'caches/default', agent, 'depot');
  await expect.poll(() => readdirSync(depot).sort()).toEqual(['kept', 'new']);
  await expect.poll(() => readdirSync(join(here.stateDir, 'caches/.trash'))).toEqual([]);
  expect((statSync(join(here.stateDir, 'caches')).mode & 0o777).toString(8)).toBe('700');
  const doctor = await here.cli(['doctor']).ended;
  expect(doctor.stdout.replaceAll(/\s+/g, ' ')).toMatch(
    /named caches hold 1\.\d MiB in 1 of their folders; each may have up to 2 MiB\. 1(\.\d)? MiB of depot of .* were removed/,
  );
  expect(await job('ls /depot')).toBe('kept\nnew\n');
});
