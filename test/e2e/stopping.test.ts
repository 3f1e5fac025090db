/** The ways to stop a daemon that leave its jobs alone: `down --drain`, `down --leave`, and `on_stop` in the config. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { isAlive } from '../support/child.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

/** One agent, and jobs that end with 7 once their file is there. */
async function home(more = ''): Promise<Home & { waitFor(name: string): string[]; let(name: string): void }> {
  const here = await onejob({ config: '' });
  const flags = join(here.dir, 'flags');
  mkdirSync(flags);
  here.configure(`{ ${more} pools: { default: { agents: 1, runtime: process, volumes: ["${flags}:/flags"] } } }`);
  const waitFor = (name: string) => [
    '--no-workspace',
    '--',
    'sh',
    '-c',
    `echo begun ${name}; until [ -e /flags/${name} ]; do sleep 0.05; done; echo end; exit 7`,
  ];
  return Object.assign(here, { waitFor, let: (name: string) => writeFileSync(join(flags, name), '') });
}

describe.skipIf(lacks('bubblewrap'))('a daemon that is stopped', () => {
  test('with --drain waits for what runs and starts nothing new; what waited is in the next one, and so is a pause', async () => {
    await using here = await home();
    const first = await here.up();
    const running = here.run(...here.waitFor('one'));
    await running.says(/begun one/);
    const waiting = here.run('--detach', ...here.waitFor('two'));
    const id = (await waiting.ended).stdout.trim();
    await here.cli(['pause', 'default']).ended;
    const down = here.cli(['down', '--drain']);
    await expect.poll(async () => (await here.api.status()).stopping).toBe(true);
    // It can be looked at all the while, and what comes now is for the next one.
    expect((await here.cli(['status']).ended).stdout).toMatch(/^onejob .*, stopping/);
    expect((await here.cli(['jobs']).ended).stdout).toMatch(/running/);
    const late = here.run(...here.waitFor('three'));
    await late.says(/the daemon is stopping/);
    expect(late.stderr.match(/stopping/g)).toHaveLength(1);
    expect(first.child.running).toBe(true);
    here.let('one');
    expect(await running.ended).toMatchObject({ code: 7, stdout: 'begun one\nend\n' });
    expect(await down.ended).toMatchObject({ code: 0, stdout: 'The daemon has ended.\nIt waited for one running job.\n' });
    expect((await first.child.ended).code).toBe(0);
    await here.up();
    here.let('two');
    here.let('three');
    expect((await here.api.job(id)).reason).toBe('paused by hand');
    const other = await here.cli(['resume', '--reason', 'maintenance']).ended;
    expect(other).toMatchObject({
      code: 1,
      stdout: expect.stringContaining('Pool default is still paused by hand: type "onejob resume'),
    });
    expect(await here.cli(['resume']).ended).toMatchObject({ code: 0, stdout: 'Resumed all pools.\n' });
    expect((await here.api.settled(id)).result).toEqual({ kind: 'code', code: 7 });
    expect(await late.ended).toMatchObject({ code: 7, stdout: 'begun three\nend\n' });
    expect(await here.api.jobs({ all: true, pool: null })).toHaveLength(3);
  });

  test('with --leave lets what runs continue for the next one, and anyone who watches sees all of it', async () => {
    await using here = await home();
    const daemon = await here.up();
    const running = here.run(...here.waitFor('one'));
    await running.says(/begun one/);
    expect((await here.cli(['down', '--leave']).ended).code).toBe(0);
    // Wholly: another one may be started right away.
    expect(isAlive(daemon.pid)).toBe(false);
    const [there] = (await here.census()).left;
    expect(there).toBeDefined();
    here.let('one');
    await here.up();
    expect(await running.ended).toMatchObject({ code: 7, stdout: 'begun one\nend\n' });
    expect((await here.cli(['down']).ended).code).toBe(0);
    expect((await here.census()).left).toEqual([]);
  });

  test('with --drain can be hurried', async () => {
    await using here = await home();
    const daemon = await here.up();
    const running = here.run(...here.waitFor('never'));
    await running.says(/begun never/);
    const down = here.cli(['down', '--drain']);
    await expect.poll(async () => (await here.api.status()).stopping).toBe(true);
    expect((await here.cli(['down', '--now']).ended).code).toBe(0);
    expect((await running.ended).code).toBe(125);
    expect((await down.ended).code).toBe(0);
    expect((await daemon.child.ended).code).toBe(0);
  });

  test('by SIGTERM does what on_stop says; a second signal ends what runs', async () => {
    await using here = await home('on_stop: drain,');
    const daemon = await here.up();
    const running = here.run(...here.waitFor('never'));
    await running.says(/begun never/);
    daemon.child.signal('SIGTERM');
    await expect.poll(async () => (await here.api.status()).stopping).toBe(true);
    expect((await here.api.jobs({ all: false, pool: null })).map((job) => job.state)).toEqual(['running']);
    daemon.child.signal('SIGTERM');
    const ended = await running.ended;
    expect(ended.code, ended.stderr).toBe(125);
    expect(ended.stderr).toMatch(/onejob was stopped while the job ran/);
    expect((await daemon.child.ended).code).toBe(0);
  });
});
