/** Two users of this host with one daemon of root's: what each may do, through the whole command line, and what a changed config takes away. */
import { chmodSync, chownSync, existsSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { personSocket } from '../../src/config/paths.ts';
import { type Child, startChild } from '../support/child.ts';
import { type Home, onejob } from '../support/onejob.ts';

/** Users that every Linux has, each in a group of the same number. */
const [nobody, daemon] = [65_534, 1];
/** ms */
const patient = { timeout: 60_000 };
const program = join(import.meta.dirname, '..', '..', 'bin', 'onejob');

const pools = `
pools:
  default: { agents: 1, runtime: process }
  other: { agents: 1, runtime: process }
`;
const config = `${pools}
people:
  groups:
    nogroup: { role: submit, pools: [default] }
    daemon: { role: look }
`;

/** What a test that fails leaves running. */
const started = new Set<Child>();
afterEach(async () => {
  for (const child of started) if (child.running) await child.kill();
  started.clear();
});

function as(uid: number, home: Home, ...args: string[]): Child {
  const own = join(home.dir, `home-${uid}`);
  if (!existsSync(own)) mkdirSync(own);
  chownSync(own, uid, uid);
  const { ONEJOB_CONFIG: _, ...env } = home.env;
  const to = ['setpriv', `--reuid=${uid}`, `--regid=${uid}`, '--clear-groups', program, ...args] as const;
  const child = startChild(to[0], to.slice(1), { cwd: own, env: { ...env, HOME: own, XDG_CONFIG_HOME: join(own, '.config') } });
  started.add(child);
  return child;
}

test.runIf(process.geteuid?.() === 0)(
  'two users of one host have what the config gives each, and lose it with the config',
  async () => {
    await using home = await onejob({ config });
    chmodSync(home.dir, 0o755);
    await home.up();
    const command = ['--no-workspace', '--', 'echo', 'said'];
    const own = await as(nobody, home, 'run', ...command).ended;
    expect(own).toMatchObject({ code: 0, stdout: expect.stringContaining('said') });
    const [job] = JSON.parse((await as(daemon, home, 'jobs', '--all', '--json').ended).stdout);
    expect(job).toMatchObject({ user: 'nobody', person: nobody, state: 'done' });

    const refused = async (uid: number, ...args: string[]) => {
      const { code, stderr } = await as(uid, home, ...args).ended;
      expect(code, args.join(' ')).not.toBe(0);
      expect(stderr, args.join(' ')).toMatch(/the group "(nogroup|daemon)"/);
    };
    await refused(daemon, 'run', ...command);
    await refused(daemon, 'logs', job.id);
    await refused(nobody, 'run', '--pool', 'other', ...command);
    await refused(nobody, 'run', '--volume', '/etc:/host', ...command);
    await refused(nobody, 'down');
    await refused(nobody, 'config', 'apply');

    // Root's job is nobody else's.
    const roots = home.run('--no-workspace', '--', 'sleep', '600');
    await expect.poll(async () => (await home.api.jobs({ all: false, pool: null })).length, patient).toBe(1);
    const [waiting] = await home.api.jobs({ all: false, pool: null });
    await refused(nobody, 'cancel', waiting?.id ?? '');

    const socket = personSocket(home.socket, nobody);
    expect(existsSync(socket)).toBe(true);
    home.configure(`${pools}\npeople:\n  groups:\n    daemon: { role: look }\n`);
    await home.api.call('POST /v1/config/apply', { body: { dryRun: false } });
    await expect.poll(() => existsSync(personSocket(home.socket, daemon)) && !existsSync(socket), patient).toBe(true);
    const gone = await as(nobody, home, 'status').ended;
    expect(gone.stderr).toContain('nobody is in no group that may use it');
    expect((await as(daemon, home, 'status').ended).code).toBe(0);
    await home.api.cancel(waiting?.id ?? '');
    await roots.ended;
  },
  180_000,
);
