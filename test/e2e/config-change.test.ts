/** A config that changes under a running daemon: what is told of it, and how it is applied without touching a running job. */
import { once } from 'node:events';
import { mkdirSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

const one = 'pools: { default: { agents: 1, runtime: process } }';
const held = ['--no-workspace', '--', 'sh', '-c', 'echo begun; until [ -e /flags/go ]; do sleep 0.05; done; echo over; exit 3'];

test.skipIf(lacks('bubblewrap'))(
  'a changed config is told by status, plan and doctor, and applied under a running job, whose pool may be gone',
  async () => {
    await using here = await onejob({ config: '' });
    const flags = join(here.dir, 'flags');
    mkdirSync(flags);
    here.configure(`pools: { default: { agents: 1, runtime: process, volumes: ["${flags}:/flags"] } }`);
    const daemon = await here.up();
    const pids = async (): Promise<number> => (await here.api.status()).pid;
    const pid = await pids();
    const job = here.run(...held);
    await job.says(/begun/);
    expect((await here.cli(['config', 'apply']).ended).stdout).toBe('Nothing to apply.\n');
    here.configure('pools: { default: { agents: 3, runtime: process, env: { A: b } }, more: { agents: 1, runtime: process } }');
    const changed =
      /^! \S+config\.yml was changed after the daemon loaded it at [\d:]+; the daemon still uses what it loaded\. To apply it, type .*"onejob config apply"/m;
    expect((await here.cli(['status']).ended).stdout).toMatch(changed);
    const plan = (await here.cli(['plan']).ended).stdout;
    expect(plan).toMatch(changed);
    expect(plan).toContain('Nothing to do: what exists matches the loaded config.');
    expect((await here.cli(['doctor']).ended).stdout).toMatch(/^warning +config: \S+config\.yml was changed after/m);

    const words = [
      'pool default: 3 slots instead of 1; env, volumes changed: standbys are renewed now, agents after their job',
      'pool more: added, 1 slot',
    ];
    const dry = await here.cli(['config', 'apply', '--dry-run', '--json']).ended;
    expect(JSON.parse(dry.stdout)).toEqual({ applied: false, changes: words, warnings: [], stranded: [] });
    expect((await here.api.status()).pools).toHaveLength(1);
    const applied = await here.cli(['config', 'apply']).ended;
    expect(applied, applied.stderr).toMatchObject({ code: 0, stdout: `Applied:\n  ${words.join('\n  ')}\n` });
    expect((await here.api.status()).pools.map(({ name, slots }) => [name, slots.length])).toEqual([
      ['default', 3],
      ['more', 1],
    ]);
    expect((await here.cli(['status']).ended).stdout).not.toContain('was changed');
    const fresh = await here.run('--no-workspace', '--', 'sh', '-c', 'echo "$A"').ended;
    expect(fresh).toMatchObject({ code: 0, stdout: 'b\n' });

    // Without the pool of the job that still runs.
    here.configure('pools: { more: { agents: 1, runtime: process } }');
    expect((await here.cli(['config', 'apply']).ended).stdout).toContain(
      'pool default: removed; its running jobs continue to their end',
    );
    expect((await here.cli(['status']).ended).stdout).toMatch(/leaving/);
    expect(await pids()).toBe(pid);
    expect(job.running).toBe(true);
    writeFileSync(join(flags, 'go'), '');
    expect(await job.ended).toMatchObject({ code: 3, stdout: 'begun\nover\n' });
    expect((await daemon.stop()).code).toBe(0);
  },
);

test('jobs that wait in a pool which leaves the config: every face says so, and they can be moved', async () => {
  await using here = await onejob({
    config: `pools: { default: { agents: 1, runtime: process }, old: { agents: 1, runtime: process } }`,
  });
  const daemon = await here.up();
  await here.cli(['pause', 'old']).ended;
  const waits = here.run('--pool', 'old', '--no-workspace', '--', 'echo', 'moved');
  await waits.says(/is waiting in pool old/);
  here.configure(one);
  const stranded =
    '1 job waits in pool old and would wait for ever: the config has no such pool of the own queue. Type "onejob move --waiting --pool old --to default", or "onejob cancel --waiting --pool old".';
  expect((await here.cli(['config', 'apply', '--dry-run']).ended).stdout).toContain(`! ${stranded}`);
  expect((await here.cli(['config', 'apply']).ended).stdout).toContain(`! ${stranded}`);
  expect((await here.cli(['status']).ended).stdout).toContain(`! ${stranded}`);
  expect((await here.cli(['doctor']).ended).stdout).toMatch(/^warning +pool old: 1 job waits in pool old/m);
  await waits.says(/Type "onejob move --waiting --pool old --to default"/);
  expect(await here.cli(['move', '--waiting', '--pool', 'old', '--to', 'default']).ended).toMatchObject({ code: 0 });
  expect(await waits.ended).toMatchObject({ code: 0, stdout: 'moved\n' });
  expect((await here.cli(['status']).ended).stdout).not.toContain('for ever');
  expect((await daemon.stop()).code).toBe(0);
});

test('apply says what "config check" warns of, also when it only says what would change', async () => {
  await using here = await onejob({ config: one });
  const daemon = await here.up();
  here.configure('pools: { default: { agents: 1, runtime: process, volumes: ["/nope:/x"] } }');
  const warning = /config\.yml:1:\d+: warning: pools\.default\.volumes\[0\]: is \/nope, which does not exist on this host/;
  const dry = await here.cli(['config', 'apply', '--dry-run']).ended;
  expect(dry).toMatchObject({ code: 0, stdout: expect.stringContaining('volumes'), stderr: expect.stringMatching(warning) });
  const json = await here.cli(['config', 'apply', '--dry-run', '--json']).ended;
  expect(JSON.parse(json.stdout).warnings).toMatchObject([{ level: 'warning', line: 1, key: 'pools.default.volumes[0]' }]);
  expect(json.stderr).toBe('');
  expect(await here.cli(['config', 'apply']).ended).toMatchObject({ code: 0, stderr: expect.stringMatching(warning) });
  expect((await daemon.stop()).code).toBe(0);
});

test('a hangup applies the config, and an invalid one changes nothing; status and doctor say so', async () => {
  await using here = await onejob({ config: one });
  const daemon = await here.up();
  here.configure('pools: { default: { agents: many, runtime: process } }');
  const refused = await here.cli(['config', 'apply']).ended;
  expect(refused).toMatchObject({ code: 1, stderr: expect.stringMatching(/config\.yml:1:\d+: .*agents/) });
  daemon.child.signal('SIGHUP');
  await daemon.child.says(/failed to apply the config/);
  expect((await here.cli(['status']).ended).stdout).toMatch(/It is invalid.*"onejob config check \S*config\.yml"/);
  expect((await here.cli(['doctor']).ended).stdout).toMatch(/It is invalid/);
  expect((await here.api.status()).pools[0]?.slots).toHaveLength(1);

  here.configure('pools: { default: { agents: 2, runtime: process } }');
  daemon.child.signal('SIGHUP');
  await expect.poll(async () => (await here.api.status().catch(() => null))?.pools[0]?.slots.length).toBe(2);
  // Two in a row, the second while the manager of the first cannot close: somebody has not finished a request.
  const open = connect(here.socket).on('error', () => {});
  open.write('POST /v1/jobs HTTP/1.1\r\nhost: onejob\r\ncontent-length: 10\r\n\r\n');
  await once(open, 'connect');
  here.configure('pools: { default: { agents: 3, runtime: process } }');
  daemon.child.signal('SIGHUP');
  await daemon.child.says(/3 slots.*applying the config/);
  here.configure(one);
  daemon.child.signal('SIGHUP');
  await expect.poll(async () => (await here.api.status().catch(() => null))?.pools[0]?.slots.length).toBe(1);
  open.destroy();
  expect((await here.run('--no-workspace', '--', 'echo', 'hello').ended).stdout).toBe('hello\n');
  expect((await daemon.stop()).code).toBe(0);
  expect((await here.census()).left).toEqual([]);
});

test('a stop wins: it is not undone by a config, and not lost while one is applied', async () => {
  await using here = await onejob({ config: one });
  const daemon = await here.up();
  const job = here.run('--no-workspace', '--', 'sh', '-c', 'echo begun; sleep 300');
  await job.says(/begun/);
  const down = here.cli(['down', '--drain']);
  await expect.poll(async () => (await here.api.status()).stopping).toBe(true);
  here.configure('pools: { default: { agents: 2, runtime: process } }');
  expect(await here.cli(['config', 'apply']).ended).toMatchObject({ code: 1, stderr: expect.stringContaining('stopping') });
  await here.cli(['cancel', '--all']).ended;
  expect((await down.ended).code).toBe(0);
  expect((await daemon.child.ended).code).toBe(0);

  const again = await here.up();
  here.configure(one);
  again.child.signal('SIGHUP');
  await again.child.says(/applying the config/);
  again.child.signal('SIGTERM');
  expect((await again.child.ended).code).toBe(0);
  expect((await here.census()).left).toEqual([]);
});

test.skipIf(lacks('docker', 'image', 'bubblewrap'))('a runtime that leaves the config leaves nothing on its Engine', async () => {
  await using here = await onejob({ config: 'pools: { default: { agents: 1, image: "debian:stable-slim" } }' });
  const daemon = await here.up();
  await expect.poll(async () => (await here.api.status()).pools[0]?.slots[0]?.standby.state).toBe('standby');
  here.configure(one);
  expect(await here.cli(['config', 'apply']).ended).toMatchObject({ code: 0 });
  await expect.poll(async () => (await here.api.status()).pools[0]?.slots[0]?.standby.state).toBe('standby');
  // The next config knows nothing of what another one has used.
  await daemon.kill();
  const again = await here.up();
  expect(await here.cli(['down']).ended).toMatchObject({ code: 0 });
  await again.child.ended;
  expect((await here.census()).left).toEqual([]);
});
