/** A temporary daemon beside one that stays: it takes no job of that one, and gives way to it at once. */
import { mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

const waitFor = (name: string) => ['sh', '-c', `echo begun ${name}; until [ -e /flags/${name} ]; do sleep 0.05; done; echo end`];

describe.skipIf(lacks('bubblewrap'))('a temporary daemon', () => {
  test('takes no job that a killed daemon had accepted, and looking at it starts nothing; "onejob up" takes over while a job runs', async () => {
    await using here = await onejob({ config: '' });
    const flags = join(here.dir, 'flags');
    mkdirSync(flags);
    here.configure(`{ pools: { default: { agents: 2, runtime: process, volumes: ["${flags}:/flags"] } } }`);
    const first = await here.up();
    const [one, two, three] = await Promise.all(
      ['one', 'two', 'three'].map(async (name) => {
        const { stdout } = await here.run('--no-workspace', '--detach', '--', ...waitFor(name)).ended;
        return stdout.trim();
      }),
    );
    await expect
      .poll(async () => (await here.api.jobs({ all: false, pool: null })).filter(({ state }) => state === 'running').length)
      .toBe(2);
    const waiting = (await here.api.jobs({ all: false, pool: null })).find(({ state }) => state === 'queued')?.id ?? '';
    expect([one, two, three]).toContain(waiting);
    await first.kill();

    const listed = await here.cli(['jobs']).ended;
    expect(listed).toMatchObject({ code: 0, stdout: expect.stringMatching(new RegExp(`${waiting} +default +\\S+ +queued`)) });
    expect(listed.stderr).toContain('no daemon is running; one job is waiting; 2 jobs were left running');
    await Promise.all([['logs', waiting], ['doctor'], ['cancel', waiting]].map((command) => here.cli(command).ended));
    expect(readdirSync(here.stateDir)).not.toContain('daemon.log');

    // Two agents are busy with jobs of the killed daemon, and are let continue.
    for (const name of [one, two, three].filter((id) => id !== waiting).slice(0, 1)) {
      const at = [one, two, three].indexOf(name);
      writeFileSync(join(flags, ['one', 'two', 'three'][at] ?? ''), '');
    }
    const mine = here.run('--no-workspace', '--', ...waitFor('mine'));
    await mine.says(/begun mine/);
    expect(mine.stderr).toContain('One job waits for the daemon that accepted it');
    expect(await here.api.job(waiting)).toMatchObject({
      state: 'queued',
      reason: expect.stringContaining('A permanent daemon accepted it'),
    });
    expect((await here.api.status()).temporary).toBe(true);

    await here.up();
    // The temporary one may still answer.
    await expect.poll(async () => (await here.api.status()).temporary, { timeout: 30_000 }).toBe(false);
    for (const name of ['mine', 'one', 'two', 'three']) writeFileSync(join(flags, name), '');
    expect(await mine.ended).toMatchObject({ code: 0, stdout: 'begun mine\nend\n' });
    for (const id of [one, two, three]) expect((await here.api.settled(id ?? '')).result).toEqual({ kind: 'code', code: 0 });
  });

  test('that ends while a job of a killed daemon runs leaves it to the next one', async () => {
    await using here = await onejob({ config: '' });
    const flags = join(here.dir, 'flags');
    mkdirSync(flags);
    here.configure(`{ pools: { default: { agents: 2, runtime: process, volumes: ["${flags}:/flags"] } } }`);
    const first = await here.up();
    const kept = here.run('--no-workspace', '--detach', '--', ...waitFor('kept'));
    const id = (await kept.ended).stdout.trim();
    await expect.poll(async () => (await here.api.job(id)).state).toBe('running');
    await first.kill();
    expect(await here.run('--no-workspace', '--', 'echo', 'beside').ended).toMatchObject({ code: 0, stdout: 'beside\n' });
    await expect.poll(() => readdirSync(here.stateDir).includes('lead.json')).toBe(false);
    expect((await here.cli(['jobs', id]).ended).stdout).toContain('running');
    writeFileSync(join(flags, 'kept'), '');
    await here.up();
    expect((await here.api.settled(id)).result).toEqual({ kind: 'code', code: 0 });
  });

  test('a second "run" with another config is refused while the first one runs, and counts after it', async () => {
    await using here = await onejob({ config: '' });
    const flags = join(here.dir, 'flags');
    mkdirSync(flags);
    const config = (name: string, value: string) => {
      const file = join(here.dir, name);
      writeFileSync(file, `{ pools: { default: { runtime: process, env: { WHICH: ${value} }, volumes: ["${flags}:/flags"] } } }`);
      return file;
    };
    const [a, b] = [config('a.yml', 'A'), config('b.yml', 'B')];
    const told = ['--no-workspace', '--', 'sh', '-c', 'echo $WHICH'];
    const waits = 'echo $WHICH; until [ -e /flags/go ]; do sleep 0.05; done';
    const first = here.run('--config', a, '--no-workspace', '--', 'sh', '-c', waits);
    await first.says(/^A$/m);
    const refused = await here.run('--config', b, ...told).ended;
    expect(refused).toMatchObject({ code: 125, stdout: '', stderr: expect.stringContaining(a) });
    writeFileSync(join(flags, 'go'), '');
    expect(await first.ended).toMatchObject({ code: 0 });
    expect(await here.run('--config', b, ...told).ended).toMatchObject({ code: 0, stdout: 'B\n' });
  });
});
