import { chmodSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { agentIn, runIn, shells } from '../../../test/kit/azure-shells.ts';
import { scratch } from '../../../test/support/scratch.ts';
import { lookInside, readInside } from './capabilities.ts';

describe.each(shells)('asked with %s', (...shell) => {
  const ask = (env: Record<string, string>) => readInside(runIn(shell, lookInside, env).out);

  it('finds the agent, its version, and who would run it', () => {
    using dir = scratch();
    const root = agentIn(dir.path, 'echo "a warning" >&2; echo 5.278.0');
    const found = ask({ ONEJOB_AGENT_ROOT: root });
    expect(found).toMatchObject({ root, version: '5.278.0', problem: null, isWritable: true, uid: process.getuid?.() });
    expect(found.arch).toBe(process.arch === 'arm64' ? 'aarch64' : 'x86_64');
    expect(found.tools.sh).toMatch(/sh$/);
  });

  it('says what an agent says that does not run', () => {
    using dir = scratch();
    const root = agentIn(dir.path, 'echo "Couldn\'t find a valid ICU package" >&2; exit 134');
    expect(ask({ ONEJOB_AGENT_ROOT: root })).toMatchObject({ root, version: null, problem: "Couldn't find a valid ICU package" });
  });

  it('does not take other output of an agent for its version', () => {
    using dir = scratch();
    const root = agentIn(dir.path, 'echo hello');
    expect(ask({ ONEJOB_AGENT_ROOT: root })).toMatchObject({ version: null, problem: 'hello' });
  });

  it('finds no agent where there is none', () => {
    using dir = scratch();
    expect(ask({ ONEJOB_AGENT_ROOT: dir.path })).toMatchObject({ root: null, version: null, problem: null, isWritable: false });
  });

  it('sees that it cannot write there', () => {
    using dir = scratch();
    const root = agentIn(dir.path, 'echo 5.278.0');
    chmodSync(root, 0o555);
    chmodSync(dir.path, 0o755);
    // Nothing is forbidden to root.
    const nobody = process.getuid?.() === 0 ? 65_534 : undefined;
    const found = readInside(runIn(shell, lookInside, { ONEJOB_AGENT_ROOT: root }, nobody).out);
    expect(found).toMatchObject({ version: '5.278.0', isWritable: false, ...(nobody !== undefined && { uid: nobody }) });
    chmodSync(root, 0o755);
  });

  it('reads the environment that an agent will find, whatever stands in it', () => {
    const env = {
      PLAIN: 'word',
      EMPTY: '',
      SPACES: ' two  words ',
      SINGLE: "it's",
      DOUBLE: 'a "b" c',
      BOTH: `'"'`,
      BACKSLASH: 'a\\nb\\',
      DOLLAR: '$HOME `id` $(id)',
      EQUALS: 'a=b=c',
      UNICODE: 'Grüße',
      LINES: 'one\nuid=7\nroot=/elsewhere\nexport FALSE=yes',
    };
    const { environment, uid, root } = ask(env);
    const { LINES: _, ...others } = env;
    expect(environment).toMatchObject(others);
    expect(environment.LINES).toBeUndefined();
    expect({ uid, root }).toEqual({ uid: process.getuid?.(), root: null });
  });

  it('leaves an environment as it is that lets agents run as root', () => {
    using dir = scratch();
    const root = agentIn(dir.path, 'echo "5.278.$AGENT_ALLOW_RUNASROOT"');
    const found = ask({ ONEJOB_AGENT_ROOT: root, AGENT_ALLOW_RUNASROOT: '7' });
    expect(found).toMatchObject({ version: '5.278.1', environment: { AGENT_ALLOW_RUNASROOT: '7' } });
  });
});

it('finds the first of the usual places only', () => {
  using dir = scratch();
  mkdirSync(join(dir.path, 'bin'));
  expect(readInside('root=/azp\nroot=/agent\nuid=0\nstart=/azp/start.sh\n')).toMatchObject({
    root: '/azp',
    start: '/azp/start.sh',
  });
});

it('does not take half an answer for one', () => {
  expect(() => readInside('root=/azp\n')).toThrow('did not finish');
});
