/** What people do with jobs beside running them: cancel, detach, follow; and who may. */
import { chmodSync, mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import type { JobView } from '../../src/contract/schema.ts';
import { startChild } from '../support/child.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

const program = join(import.meta.dirname, '..', '..', 'bin', 'onejob');
const missing = lacks('bubblewrap');

describe.skipIf(missing)('one agent and several jobs', () => {
  let here: Home;
  /** What jobs wait for in the middle, by `untilGo`. */
  let go = '';
  const untilGo = 'until [ -e /flags/go ]; do sleep 0.05; done';
  const only = { all: true, pool: null };

  beforeAll(async () => {
    if (missing) return;
    here = await onejob({ config: '' });
    go = join(here.dir, 'flags', 'go');
    mkdirSync(join(go, '..'));
    const volumes = `volumes: ["${join(go, '..')}:/flags"]`;
    here.configure(`pools: { default: { agents: 1, runtime: process, ${volumes} } }`);
    await here.up();
  });
  afterEach(async () => {
    rmSync(go, { force: true });
    for (const job of await here.api.jobs({ all: false, pool: null })) await here.api.cancel(job.id);
  });
  afterAll(() => (missing ? undefined : here.close()));

  const detach = async (...args: string[]): Promise<string> =>
    (await here.run('--no-workspace', '--detach', ...args).ended).stdout.trim();
  const cli = async (...args: string[]): Promise<string> => {
    const ended = await here.cli(args).ended;
    expect(ended.code, ended.stderr).toBe(0);
    return ended.stdout;
  };
  const settled = (id: string): Promise<JobView> => here.api.settled(id);

  test('a waiting job that is cancelled never begins, a running one gets its last words', async () => {
    const run = here.run(
      '--no-workspace',
      '--',
      'sh',
      '-c',
      'trap "echo bye; exit 0" TERM; echo begun; while :; do sleep 0.05; done',
    );
    await run.says(/begun/);
    const [running] = await here.api.jobs({ all: false, pool: null });
    const waiting = await detach('--', 'sh', '-c', 'echo never');
    expect(await cli('jobs')).toMatch(new RegExp(`${waiting} +default +\\S+ +queued`));
    expect(await cli('cancel', waiting)).toBe(`Job ${waiting} has ended (cancelled).\n`);
    expect(await settled(waiting)).toMatchObject({ result: { kind: 'cancelled' }, startedAt: null });
    expect(await cli('logs', waiting)).toBe('');
    expect(await cli('cancel', running?.id ?? '')).toContain('was told to end');
    expect(await run.ended).toMatchObject({ code: 130, stdout: 'begun\nbye\n' });
    // Once more changes nothing, and an unknown one is said to be so.
    expect(await cli('cancel', running?.id ?? '')).toContain('has ended (cancelled)');
    const unknown = await here.cli(['cancel', 'nonsense']).ended;
    expect(unknown.code).toBe(1);
    expect(unknown.stderr).toContain('There is no job nonsense');
  });

  test('--detach prints the id; logs -f shows all of it, from whenever, by as many as like', async () => {
    const id = await detach('--', 'sh', '-c', `echo one; echo err >&2; ${untilGo}; echo two; exit 9`);
    expect(id).toMatch(/^[0-9a-f]{12}$/);
    const [first, second] = [here.cli(['logs', '-f', id]), here.cli(['logs', '--follow', id])];
    await first.says(/one/);
    writeFileSync(go, '');
    for (const reader of [first, second])
      expect(await reader.ended).toMatchObject({ code: 0, stdout: 'one\ntwo\n', stderr: 'err\n' });
    expect((await here.cli(['logs', id]).ended).stdout).toBe('one\ntwo\n');
    expect((await here.cli(['logs', 'default/1', '--previous']).ended).code).toBe(0);
    expect((await settled(id)).result).toEqual({ kind: 'code', code: 9 });
    expect((await here.api.jobs(only)).find((job) => job.id === id)?.result).toEqual({ kind: 'code', code: 9 });
  });
});

describe.skipIf(lacks('bubblewrap', 'root', 'mount'))('the daemon of another user', () => {
  const gid = 54_321;
  const as = (here: Home, groups: string, ...args: string[]) =>
    startChild('setpriv', ['--reuid=54320', '--regid=54320', groups, program, ...args], {
      cwd: here.cwd,
      env: { ...here.env, HOME: '/nonexistent', NODE_COMPILE_CACHE: '' },
    });

  test('refuses strangers with what to do, starts nothing behind its back, and takes members of the group onejob', async () => {
    await using here = await onejob({ config: 'pools: { default: { agents: 1, runtime: process } }' });
    chmodSync(here.dir, 0o755);
    chmodSync(join(here.dir, 'config.yml'), 0o644);
    writeFileSync(join(here.dir, 'group'), `root:x:0:\nonejob:x:${gid}:\n`);
    // This machine's groups stay as they are: the daemon alone sees one more.
    const script = `mount --bind '${here.dir}/group' /etc/group && exec "$0" up`;
    const daemon = startChild('unshare', ['-m', 'sh', '-c', script, program], { cwd: here.cwd, env: here.env });
    try {
      await daemon.says(/onejob is up/);
      for (const args of [['run', '--no-workspace', '--', 'true'], ['status'], ['jobs']]) {
        const refused = await as(here, '--clear-groups', ...args).ended;
        expect(refused.code).toBe(args[0] === 'run' ? 125 : 1);
        expect(refused.stdout).toBe('');
        expect(refused.stderr).toMatch(/Cannot connect[\s\S]*group "onejob"/);
      }
      expect(await here.api.jobs({ all: true, pool: null })).toEqual([]);
      const member = await as(here, `--groups=${gid}`, 'run', '--no-workspace', '--', 'sh', '-c', 'echo mine').ended;
      expect(member).toMatchObject({ code: 0, stdout: 'mine\n' });
    } finally {
      daemon.signal('SIGTERM');
      await daemon.ended;
    }
  });
});
