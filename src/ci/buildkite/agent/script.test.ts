import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { runIn, shells } from '../../../../test/kit/azure-shells.ts';
import { type Scratch, scratch } from '../../../../test/support/scratch.ts';
import { type AgentAccess, agentScript, type ScriptParts } from './script.ts';

/** Each of these has ended a quoted word, a line or an expansion somewhere. */
const hostile = [
  "it's",
  '"two"',
  'a\nb',
  '$HOME',
  '`id`',
  '$(id)',
  '\\',
  '\\n',
  '-n',
  "'; exit 9; '",
  '*',
  '~',
  'ü',
  ' ',
  '!!',
  '#',
].join('|');

/** A `buildkite-agent` in `bin` that writes down its arguments and its own variables, each ended by a zero byte. */
function stub(dir: Scratch): {
  readonly env: Record<string, string>;
  readonly seen: () => { args: string; set: Record<string, string> };
} {
  const bin = join(dir.path, 'bin');
  mkdirSync(bin);
  const program = `#!/bin/sh\nprintf '%s ' "$@" >'${dir.path}/args'\nenv -0 >'${dir.path}/env'\nexit 7\n`;
  writeFileSync(join(bin, 'buildkite-agent'), program, { mode: 0o755 });
  return {
    env: { PATH: `/usr/bin:/bin:${bin}` },
    seen() {
      const pairs = readFileSync(join(dir.path, 'env'), 'utf8')
        .split('\0')
        .filter((pair) => pair.startsWith('BUILDKITE'));
      return {
        args: readFileSync(join(dir.path, 'args'), 'utf8').trim(),
        set: Object.fromEntries(pairs.map((pair) => [pair.slice(0, pair.indexOf('=')), pair.slice(pair.indexOf('=') + 1)])),
      };
    },
  };
}

const access: AgentAccess = { token: 'once', endpoint: 'http://172.18.0.1:7070/v3', isFiltered: true, job: 'job-1' };
const partsIn = (dir: Scratch, more: Partial<ScriptParts> = {}): ScriptParts => ({
  name: 'box-1',
  workspace: join(dir.path, 'workspace'),
  access,
  tags: ['queue=gpu', 'cuda=12'],
  secrets: [],
  hooks: null,
  plugins: null,
  verifiesCommit: false,
  cancelGrace: 30_000,
  note: null,
  ...more,
});

describe.each(shells)('in %s', (...shell) => {
  it.each([
    [false, {}, undefined],
    [true, {}, 'strict'],
    // The owner's, in the pool's `env`.
    [true, { BUILDKITE_GIT_COMMIT_VERIFICATION: 'warn' }, 'warn'],
  ])('verifies commits where it should (%s), with %j', (verifiesCommit, given, expected) => {
    using dir = scratch();
    const { env, seen } = stub(dir);
    runIn(shell, agentScript(partsIn(dir, { verifiesCommit })), { ...env, ...given });
    expect(seen().set.BUILDKITE_GIT_COMMIT_VERIFICATION).toBe(expected);
  });

  it('gives the job its secrets, and has the agent mask them in addition to its own', () => {
    using dir = scratch();
    const { env, seen } = stub(dir);
    const secrets = [
      { name: 'BUILDKITE_TEST_DEPLOY', value: hostile },
      { name: 'BUILDKITE_TEST_OTHER', value: 'x' },
    ];
    runIn(shell, agentScript(partsIn(dir, { secrets })), env);
    const { set } = seen();
    expect([set.BUILDKITE_TEST_DEPLOY, set.BUILDKITE_TEST_OTHER]).toEqual([hostile, 'x']);
    expect(set.BUILDKITE_REDACTED_VARS?.split(',')).toEqual(
      expect.arrayContaining(['*_TOKEN', '*_PASSWORD', 'BUILDKITE_TEST_DEPLOY', 'BUILDKITE_TEST_OTHER']),
    );
  });

  it('becomes the agent of one job, with nothing but its own variables', () => {
    using dir = scratch();
    const { env, seen } = stub(dir);
    const parts = partsIn(dir);
    expect(runIn(shell, agentScript(parts), env).code).toBe(7);
    const own = `${parts.workspace}/.buildkite`;
    expect(seen()).toEqual({
      args: 'start',
      set: {
        BUILDKITE_AGENT_TOKEN: 'once',
        BUILDKITE_AGENT_ENDPOINT: 'http://172.18.0.1:7070/v3',
        BUILDKITE_AGENT_NAME: 'box-1',
        BUILDKITE_AGENT_TAGS: 'queue=gpu,cuda=12',
        BUILDKITE_AGENT_CONFIG: `${own}/agent.cfg`,
        BUILDKITE_BUILD_PATH: `${parts.workspace}/builds`,
        BUILDKITE_HOOKS_PATH: `${own}/hooks`,
        BUILDKITE_PLUGINS_PATH: `${own}/plugins`,
        BUILDKITE_SOCKETS_PATH: `${own}/sockets`,
        BUILDKITE_CANCEL_GRACE_PERIOD: '30',
        BUILDKITE_AGENT_PING_MODE: 'poll-only',
        BUILDKITE_WRITE_JOB_LOGS_TO_STDOUT: 'true',
        BUILDKITE_AGENT_ACQUIRE_JOB: 'job-1',
        BUILDKITE_AGENT_REFLECT_EXIT_STATUS: 'true',
      },
    });
    for (const folder of ['hooks', 'plugins', 'sockets']) expect(existsSync(join(own, folder))).toBe(true);
    expect(readFileSync(join(own, 'agent.cfg'), 'utf8')).toBe('');
  });

  it('hands over hostile words byte by byte', () => {
    using dir = scratch();
    const { env, seen } = stub(dir);
    const workspace = join(dir.path, hostile.replaceAll('/', '').replaceAll('|', '+'));
    const all = { ...access, token: hostile, endpoint: hostile, job: hostile };
    const words = { access: all, name: hostile, hooks: hostile, plugins: hostile };
    expect(runIn(shell, agentScript(partsIn(dir, { ...words, workspace })), env)).toEqual({ code: 7, out: '' });
    const { set } = seen();
    for (const name of ['AGENT_TOKEN', 'AGENT_ENDPOINT', 'AGENT_NAME', 'AGENT_ACQUIRE_JOB', 'HOOKS_PATH', 'PLUGINS_PATH']) {
      expect([name, set[`BUILDKITE_${name}`]]).toEqual([name, hostile]);
    }
    expect(set.BUILDKITE_BUILD_PATH).toBe(`${workspace}/builds`);
    expect(existsSync(join(workspace, '.buildkite/hooks'))).toBe(true);
  });

  it('waits for a job where it has none, and then for no other', () => {
    using dir = scratch();
    const { env, seen } = stub(dir);
    runIn(shell, agentScript(partsIn(dir, { access: { ...access, job: null } })), env);
    expect(seen().set).toMatchObject({ BUILDKITE_AGENT_DISCONNECT_AFTER_JOB: 'true' });
    expect(Object.hasOwn(seen().set, 'BUILDKITE_AGENT_ACQUIRE_JOB')).toBe(false);
  });

  it('takes nothing from an image or from an earlier job that would make it another agent', () => {
    using dir = scratch();
    const { env, seen } = stub(dir);
    const image = {
      BUILDKITE_AGENT_TAGS: 'queue=release',
      BUILDKITE_AGENT_QUEUE: 'release',
      BUILDKITE_AGENT_PRIORITY: '9',
      BUILDKITE_AGENT_SPAWN: '4',
      BUILDKITE_AGENT_TOKEN: 'of the image',
      BUILDKITE_AGENT_CONFIG: '/root/evil.cfg',
      BUILDKITE_AGENT_ACQUIRE_JOB: 'another',
      BUILDKITE_AGENT_DISCONNECT_AFTER_JOB: 'false',
      BUILDKITE_AGENT_DISCONNECT_AFTER_IDLE_TIMEOUT: '1',
      BUILDKITE_AGENT_DISCONNECT_AFTER_UPTIME: '1',
      BUILDKITE_AGENT_SPAWN_PER_CPU: '1',
    };
    const home = join(dir.path, 'home');
    mkdirSync(join(home, '.buildkite-agent'), { recursive: true });
    writeFileSync(join(home, '.buildkite-agent/buildkite-agent.cfg'), 'tags="queue=release"');
    runIn(shell, agentScript(partsIn(dir)), { ...env, ...image, HOME: home });
    const { set } = seen();
    const kept = Object.keys(image).filter((name) => set[name] === image[name as keyof typeof image]);
    expect(kept).toEqual([]);
    expect(set.BUILDKITE_AGENT_CONFIG).toContain('/.buildkite/agent.cfg');
  });

  it('reads no settings of git and no start-up file that an earlier job left in a home that outlives it', () => {
    using dir = scratch();
    const { env } = stub(dir);
    const home = join(dir.path, 'home');
    mkdirSync(join(home, '.config/git'), { recursive: true });
    for (const name of ['.gitconfig', '.config/git/config']) writeFileSync(join(home, name), '[core]\n\tfsmonitor = evil\n');
    writeFileSync(join(home, 'evil.sh'), 'echo evil');
    const program = `#!/bin/sh\ngit config core.fsmonitor\ngit config --global user.name me\ngit config user.name\nprintf '[%s]' "$BASH_ENV$ENV"\n`;
    writeFileSync(join(dir.path, 'bin/buildkite-agent'), program, { mode: 0o755 });
    const start = { BASH_ENV: join(home, 'evil.sh'), ENV: join(home, 'evil.sh') };
    const parts = partsIn(dir);
    const { out } = runIn(shell, `cd /\n${agentScript(parts)}`, { ...env, HOME: home, ...start });
    expect(out.replaceAll('evil\n', '')).toBe('me\n[]');
    // A job may still have settings of its own, which end with it.
    expect(readFileSync(join(home, '.gitconfig'), 'utf8')).not.toContain('me');
    runIn(shell, agentScript(parts), { ...env, HOME: home });
    expect(readFileSync(`${parts.workspace}/.buildkite/gitconfig`, 'utf8')).toContain('name = me');
  });

  it("has a sentence for the log of its job, whatever is in it, unless the hooks are its owner's", () => {
    using dir = scratch();
    const { env } = stub(dir);
    const parts = partsIn(dir, { note: hostile });
    // Its agent's own log has it; that of the job has it from the hook.
    expect(runIn(shell, `{ ${agentScript(parts)}\n} 2>&1 >/dev/null`, env).out).toBe(`${hostile}\n`);
    expect(runIn(shell, agentScript(parts), env).out).toBe('');
    expect(runIn(shell, `. '${parts.workspace}/.buildkite/hooks/environment'`, env)).toEqual({ code: 0, out: `${hostile}\n` });
    const owned = partsIn(dir, { note: 'why', hooks: '/onejob/hooks', workspace: join(dir.path, 'other') });
    expect(runIn(shell, agentScript(owned), env).out).toBe('why\n');
    expect(existsSync(`${owned.workspace}/.buildkite/hooks/environment`)).toBe(false);
  });

  it('has the settings of git that the owner names', () => {
    using dir = scratch();
    const { env } = stub(dir);
    writeFileSync(join(dir.path, 'settings'), '[user]\n\tname = owner\n');
    writeFileSync(join(dir.path, 'bin/buildkite-agent'), '#!/bin/sh\ngit config user.name\n', { mode: 0o755 });
    const given = { ...env, HOME: dir.path, GIT_CONFIG_GLOBAL: join(dir.path, 'settings') };
    expect(runIn(shell, `cd /\n${agentScript(partsIn(dir))}`, given).out).toBe('owner\n');
  });

  it("leaves what the pool's owner sets for jobs alone", () => {
    using dir = scratch();
    const { env, seen } = stub(dir);
    runIn(shell, agentScript(partsIn(dir)), { ...env, BUILDKITE_GIT_MIRRORS_PATH: '/mirrors', BUILDKITE_SHELL: '/bin/bash -e -c' });
    expect(seen().set).toMatchObject({ BUILDKITE_GIT_MIRRORS_PATH: '/mirrors', BUILDKITE_SHELL: '/bin/bash -e -c' });
  });

  it('empties a config that an earlier job left in a workspace that outlives it', () => {
    using dir = scratch();
    const { env } = stub(dir);
    const parts = partsIn(dir);
    mkdirSync(join(parts.workspace, '.buildkite'), { recursive: true });
    writeFileSync(join(parts.workspace, '.buildkite/agent.cfg'), 'tags="queue=release"');
    runIn(shell, agentScript(parts), env);
    expect(readFileSync(join(parts.workspace, '.buildkite/agent.cfg'), 'utf8')).toBe('');
  });

  it('begins nothing where its workspace cannot be written, or there is no agent', () => {
    using dir = scratch();
    const { env } = stub(dir);
    writeFileSync(join(dir.path, 'file'), '');
    expect(runIn(shell, agentScript(partsIn(dir, { workspace: join(dir.path, 'file') })), env)).toEqual({ code: 1, out: '' });
    rmSync(join(dir.path, 'bin'), { recursive: true });
    expect(runIn(shell, agentScript(partsIn(dir)), env)).toEqual({ code: 127, out: '' });
  });
});

it.each([
  [0, '1'],
  [999, '1'],
  [1_999, '1'],
  [65_000, '65'],
])('gives a cancelled job %i ms to end as %s s', (cancelGrace, seconds) => {
  using dir = scratch();
  expect(agentScript(partsIn(dir, { cancelGrace }))).toContain(`BUILDKITE_CANCEL_GRACE_PERIOD='${seconds}'`);
});
