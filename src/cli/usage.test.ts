/** A command line that cannot be parsed: any argument may be a token. */
import { Command } from 'commander';
import { describe, expect, it } from 'vitest';
import { testContext } from '../../test/support/cli-context.ts';
import { runCli } from '../cli.ts';
import { readVersion } from './session.ts';
import { withoutHelpOfUnknown } from './usage.ts';

const token = 'hunter2hunter2hunter2hunter2hunter2hunter2hunter2hunt';
const url = 'https://dev.azure.com/acme';

async function type(args: readonly string[]) {
  const { context, stdout, stderr } = testContext(args, '/nowhere');
  const code = await runCli(context);
  return { code, said: stdout() + stderr() };
}

describe.each([[[]], [['--json']]])('with %j', (more) => {
  it.each<[readonly string[], string, string]>([
    [
      ['azure', token, url, 'My', 'Pool'],
      "too many arguments for 'azure'. Expected 3 arguments but got 4.",
      'Quote values that contain blanks. See',
    ],
    [['manager', token, url, 'My', 'Pool'], "too many arguments for 'manager'. Expected 3 arguments but got 4.", 'manager --help'],
    [['azure', '@pat', url, 'gpu', '-n', token], "the value of option '-n <n>' is invalid. It must be a whole", 'azure --help'],
    [
      ['azure', '@pat', url, 'gpu', `-n${token}' is invalid. x`],
      "the value of option '-n <n>' is invalid. It must",
      'azure --help',
    ],
    [['azure', `--token=${token}`, url, 'gpu'], "unknown option '--token'", 'azure --help'],
    [['azure', `-p${token}`, url, 'gpu'], "unknown option '-p'", 'azure --help'],
    [['azure', `--${token}`, url, 'gpu'], 'unknown option', 'azure --help'],
    [['azure', '@pat', url, 'gpu', '--volumes', 'x'], "unknown option '--volumes'", 'Did you mean --volume?'],
    [[token, url, 'gpu'], 'unknown command', 'onejob --help'],
    [[token, '--bogus'], 'unknown ', 'onejob --help'],
    [['azrue', token, url, 'gpu'], "unknown command 'azrue'", 'Did you mean azure?'],
    [['secret', 'encrypt', '--key', 'k', '--name', 'A', token], 'Do not pass the value as an argument', 'secret --help'],
    [['secret', 'decrypt', '--key', 'k', token], 'Do not pass the value as an argument', "in your shell's history"],
    [['init', token], 'unknown command', 'init --help'],
    [['init', 'buildkit'], "unknown command 'buildkit'", 'Did you mean buildkite?'],
    [['init', 'gihtub', '--yes'], "unknown command 'gihtub'", 'Did you mean github?'],
    [['gpus', 'reserv'], "unknown command 'reserv'", 'Did you mean reserve?'],
    [['completion', token], "argument 'shell' is invalid. Allowed choices are bash, zsh, fish.", 'completion --help'],
  ])('%j is refused without its values', async (args, message, hint) => {
    const { code, said } = await type([...args, ...more]);
    expect(code).toBe(2);
    const plain = more.length === 0 ? said : JSON.stringify(JSON.parse(said)).replaceAll('\\"', '"');
    expect(plain).toContain(message);
    expect(plain).toContain(hint);
    expect(said).not.toContain('hunter2');
  });
});

it.each([
  [['--json', 'version']],
  [['--json', '--config', '/nowhere/config.yml', 'version']],
  [['--json', '--state-dir=/nowhere/state', '--socket', '/nowhere/socket', 'version']],
])('options of every command may come before the command: %j', async (args) => {
  expect(await type(args)).toEqual({ code: 0, said: `${JSON.stringify({ version: readVersion() })}\n` });
});

it('options of every command may come before a command of a group', async () => {
  const { code, said } = await type(['--json', 'config', 'check', '/nowhere/config.yml']);
  expect([code, JSON.parse(said)]).toMatchObject([1, { ok: false, errors: [{ source: '/nowhere/config.yml' }] }]);
  expect(await type(['config', '--json', 'check', '/nowhere/config.yml'])).toEqual({ code, said });
});

it.each<[readonly string[]]>([[['--json']], [['--config', 'status']], [['--json', '--bogus', 'status']]])(
  'without a command after them they are wrong usage: %j',
  async (args) => {
    expect((await type(args)).code).toBe(2);
  },
);

it.each(['import', 'secret', 'config', 'image'])('%s alone is wrong usage, and says what there is', async (group) => {
  const { code, said } = await type([group]);
  expect(code).toBe(2);
  expect(said).toMatch(new RegExp(`^Usage: onejob ${group} `));
  expect(said).toContain('Commands:');
});

it.each([
  ['ps', 'jobs or status'],
  ['start', 'up'],
  ['validate', 'config check'],
])('what other programs call %s is known here as %s', async (word, meant) => {
  const { code, said } = await type([word]);
  expect(code).toBe(2);
  expect(said).toContain(`unknown command '${word}'\n  (Did you mean ${meant}?)`);
});

it.each([['-v'], ['-V'], ['--version'], ['version']])('%s prints the version', async (word) => {
  expect(await type([word])).toEqual({ code: 0, said: `${readVersion()}\n` });
});

describe('help', () => {
  it('of the program, of a command, and of one below another', async () => {
    expect((await type(['help'])).said).toMatch(/^Usage: onejob \[options\]/);
    expect((await type(['help', 'logs'])).said).toMatch(/^Usage: onejob logs /);
    expect((await type(['help', 'gpus', 'reserve'])).said).toMatch(/^Usage: onejob gpus reserve /);
  });

  it('of an unknown command is wrong usage', async () => {
    expect(await type(['help', 'lgos'])).toMatchObject({ code: 2, said: expect.stringContaining("unknown command 'lgos'") });
    expect(await type(['help', 'run', 'true'])).toMatchObject({ code: 2 });
    expect(await type(['help', 'secret', 'nope'])).toMatchObject({ code: 2, said: expect.stringContaining("'nope'") });
  });

  it.each(['doctor', 'completion', 'run'])('of %s has the options of every command last, and -h among them', async (name) => {
    const { said } = await type([name, '--help']);
    const groups = [...said.matchAll(/^(Options.*):$/gm)].map(([, group]) => group);
    expect(groups).toEqual(
      ['run', 'doctor'].includes(name) ? ['Options', 'Options of every command'] : ['Options of every command'],
    );
    expect(said.slice(said.indexOf('Options of every command'))).toMatch(/^ {2}-h, --help/m);
  });
});

it('a file for plan needs a host that was recorded: a daemon plans with what it has read', async () => {
  const { code, said } = await type(['plan', 'hosts/lab.yml']);
  expect(code).toBe(2);
  expect(said).toContain('See "onejob config check hosts/lab.yml", or add --inventory');
});

it('help of a command that does not exist is an error, at any depth; an argument is not a command', () => {
  const program = new Command('onejob').option('--host <host>');
  program.command('cloud').command('up').argument('<host>');
  program.command('run').argument('<command...>');
  const asked = (...args: string[]) => withoutHelpOfUnknown(args, program).includes('--help');
  expect([asked('nosuch', '--help'), asked('--help', 'nosuch'), asked('cloud', 'nosuch', '--help')]).toEqual([false, false, false]);
  expect(asked('--host', 'gpuci', 'nosuch', '--help')).toBe(false);
  expect([asked('--help'), asked('cloud', '--help'), asked('cloud', 'up', '--help')]).toEqual([true, true, true]);
  expect([asked('run', 'nosuch', '--help'), asked('run', '--', 'x', '--help'), asked('--host', 'gpuci', '--help')]).toEqual([
    true,
    true,
    true,
  ]);
});

it('what "init" can write a config for is listed in columns', async () => {
  const { code, said } = await type(['init']);
  const starts = [...said.matchAll(/^ {2}(onejob init \S+ +)\S/gm)].map(([, command]) => command?.length);
  expect({ code, columns: new Set(starts).size }).toEqual({ code: 0, columns: 1 });
  expect(starts.length).toBeGreaterThan(5);
});
