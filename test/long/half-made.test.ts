/**
 * S4 and S11 for a sandbox that was being made when its manager went: the next one has another config, or the Engine is at it still.
 */
import { beforeAll, describe, expect, test } from 'vitest';
import { heldEngine } from '../support/held-engine.ts';
import { ensureImages, images } from '../support/images.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

const pool = (name: string, more: string) => `pools: { ${name}: { agents: 1, runtime: docker, image: "${images.base}", ${more} } }`;
const before = pool('default', 'name: "old.{n}", env: { MADE: old }');
const containers = async (here: Home) => (await here.census()).left.filter(({ kind }) => kind === 'container');

describe.skipIf(lacks('docker', 'busybox', 'bubblewrap'))('a sandbox that was not ready yet when its manager left', () => {
  beforeAll(async () => void (await ensureImages()));

  test.each([
    ['the same config', before, 'old'],
    ['another name', pool('default', 'name: "new.{n}", env: { MADE: old }'), 'old'],
    ['another recipe', pool('default', 'name: "old.{n}", env: { MADE: new }'), 'new'],
    ['another pool', pool('other', 'name: "old.{n}", env: { MADE: new }'), 'new'],
    ['no standbys', pool('default', 'name: "old.{n}", env: { MADE: old }, standby: false'), 'old'],
    ['another runtime', 'pools: { default: { agents: 1, runtime: process, name: "old.{n}", env: { MADE: new } } }', 'new'],
  ])('is gone after the next, with %s, has ended', async (_, after, made) => {
    await using here = await onejob({ config: before });
    expect((await here.cli(['up'], { env: { ONEJOB_CRASH_AT: 'prepare.effect' } }).ended).signal).toBe('SIGKILL');
    expect(await containers(here)).toHaveLength(1);
    here.configure(after);
    await here.up();
    const job = await here.run('--no-workspace', '--', 'sh', '-c', 'echo $MADE').ended;
    expect(job, job.stderr).toMatchObject({ code: 0, stdout: `${made}\n` });
    expect((await here.cli(['down']).ended).code).toBe(0);
    expect((await here.census()).left).toEqual([]);
  });

  test('is gone after the next has ended, also when the Engine had yet to make it', async () => {
    using engine = await heldEngine();
    await using here = await onejob({ config: before, env: { DOCKER_HOST: engine.url } });
    const creating = engine.hold(/^POST \S*\/containers\/create/);
    const first = await here.up();
    const create = await creating;
    await first.kill();
    here.configure(pool('other', 'name: "new.{n}"'));
    await here.up();
    expect(await here.run('--no-workspace', '--', 'echo', 'ran').ended).toMatchObject({ code: 0, stdout: 'ran\n' });
    await create.letGo();
    expect((await here.cli(['down']).ended).code).toBe(0);
    expect((await here.census()).left).toEqual([]);
  });
});
