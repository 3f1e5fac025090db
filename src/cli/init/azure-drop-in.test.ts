/** The drop-in as a person meets it: what is typed, what is said, and what a daemon is started with. */
import { execFile } from 'node:child_process';
import { chmodSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { testContext } from '../../../test/support/cli-context.ts';
import { type Scratch, scratch } from '../../../test/support/scratch.ts';
import { runCli } from '../../cli.ts';
import { readSecret } from '../../schema/secret-reference.ts';
import type { DaemonOptions } from '../context.ts';

const pat = 'hunter2hunter2hunter2hunter2hunter2hunter2hunter2hunt';
const url = 'https://dev.azure.com/acme';
let dir: Scratch;

beforeEach(() => {
  dir = scratch();
  writeFileSync(join(dir.path, 'pat'), `${pat}\n`, { mode: 0o600 });
});
afterEach(() => dir[Symbol.dispose]());

async function type(args: readonly string[], variables: Record<string, string> = {}) {
  let started: DaemonOptions | null = null;
  const { context, stdout, stderr } = testContext(args, dir.path, {
    variables,
    host: {
      async startDaemon(options) {
        started = options;
        return 0;
      },
      internetObstacle: async () => null,
      containersObstacle: async () => null,
      ociObstacle: async () => null,
    },
  });
  const environment = { ...context.environment, stateDir: join(dir.path, 'state'), path: dir.path, hostRoot: dir.path };
  const code = await runCli({ ...context, environment });
  return { code, stdout: stdout(), stderr: stderr(), started: started as DaemonOptions | null };
}

async function tokenOf(started: DaemonOptions | null, variables = {}): Promise<string> {
  const token = started?.instead?.written.services.get('azure')?.keys.token;
  return readSecret(token as never, variables);
}

describe.each(['azure', 'manager'])('onejob %s', (command) => {
  it('with a token on the command line works, warns, and repeats it nowhere', async () => {
    const { code, started, stdout, stderr } = await type([command, pat, url, 'gpu']);
    expect(code).toBe(0);
    expect(await tokenOf(started)).toBe(pat);
    expect(stderr).toMatch(/warning: the token was on the command line: .* a wrapper such as npx/);
    expect(stderr).toContain('2 agents without GPUs');
    expect(stdout + stderr + JSON.stringify(started)).not.toContain(pat);
    expect(started?.instead?.written.pools?.get('azure')).toMatchObject({
      agents: 2,
      queue: 'gpu',
      name: expect.stringMatching(/_\{0\.\.\}$/),
    });
  });
});

it('takes the token from a file, and from the environment in two ways, without a warning', async () => {
  const variables = { AZP_TOKEN: `of-${pat}` };
  for (const [argument, env, value] of [
    ['@pat', {}, pat],
    ['-', { AZP_TOKEN_FILE: 'pat', ...variables }, pat],
    ['-', variables, variables.AZP_TOKEN],
  ] as const) {
    const { code, started, stderr } = await type(['azure', argument, url, 'gpu'], env);
    expect({ code, warned: stderr.includes('warning') }).toEqual({ code: 0, warned: false });
    expect(await tokenOf(started, env)).toBe(value);
  }
});

it('a line end after the token does no harm', async () => {
  expect(await tokenOf((await type(['azure', `${pat}\n`, url, 'gpu'])).started)).toBe(pat);
});

it('takes all that the Python manager took, in its ways of writing it', async () => {
  for (const name of ['a', 'b', 'c']) mkdirSync(join(dir.path, name));
  const volumes = ['--volume', 'a:/a:A', 'b:/b:ro', '--volume=c:/c:C'];
  const { code, started, stderr } = await type([
    'azure',
    '-n3',
    '--name=lab',
    '@pat',
    `${url}/project`,
    'gpu',
    '-d',
    'me/azp',
    ...volumes,
    '--timeout',
    '5',
    '--poll-time',
    '1',
  ]);
  expect({ code, stderr }).toEqual({ code: 0, stderr: expect.stringContaining('--timeout has no effect') });
  expect(stderr).toContain('onejob uses https://dev.azure.com/acme');
  expect(stderr).toContain('--poll-time 1: onejob asks the service every 2 s');
  const written = started?.instead?.written;
  expect(written?.services.get('azure')?.keys).toMatchObject({ url, registration: 'auto', poll: 2000 });
  expect(written?.pools?.get('azure')).toMatchObject({ agents: 3, name: 'lab_{0..}', image: 'me/azp' });
  expect(written?.pools?.get('azure')?.volumes?.map(({ variable }) => variable)).toEqual(['A', 'ro', 'C']);
});

it('takes the beginnings of options that the Python manager took', async () => {
  for (const name of ['a', 'b']) mkdirSync(join(dir.path, name));
  const { code, started, stderr } = await type([
    ...['azure', '@pat', url, 'gpu', '--na', 'lab', '--dock=me/azp', '--time', '5', '--p', '60'],
    ...['--vol', 'a:/a:A', '--v=b:/b:B'],
  ]);
  expect({ code, stderr }).toEqual({ code: 0, stderr: expect.stringContaining('--timeout has no effect') });
  const written = started?.instead?.written;
  expect(written?.services.get('azure')?.keys).toMatchObject({ poll: 60_000 });
  expect(written?.pools?.get('azure')).toMatchObject({ name: 'lab_{0..}', image: 'me/azp' });
  expect(written?.pools?.get('azure')?.volumes?.map(({ variable }) => variable)).toEqual(['A', 'B']);
  expect((await type(['azure', '@pat', url, 'gpu', '--print'])).stderr).toContain("unknown option '--print'");
  expect((await type(['azure', '@pat', url, 'gpu', '--x'])).stderr).toContain("unknown option '--x'");
});

it('--print-config prints a file with the token by reference only, and starts nothing', async () => {
  const { code, stdout, started } = await type(['azure', pat, url, 'gpu', '--print-config']);
  expect({ code, started }).toEqual({ code: 0, started: null });
  expect(stdout).toMatch(/^# Put the token there first: install -D -m 600 \/dev\/stdin \/\S+azure\.pat\nservices:\n/);
  expect(stdout).not.toContain(pat);
  expect((await type(['azure', '@pat', url, 'gpu', '--print-config'])).stdout).toContain(`file: ${join(dir.path, 'pat')}\n`);
  expect((await type(['azure', '-', url, 'gpu', '--print-config'], { AZP_TOKEN: pat })).stdout).toContain('env: AZP_TOKEN\n');
});

describe('errors say what to type, and never show the token', () => {
  it.each([
    [['', url, 'gpu'], 2, 'The personal access token is empty', '@FILE'],
    [[`${pat} ${pat}`, url, 'gpu'], 2, 'contains whitespace or line breaks', '@FILE'],
    [['pat', url, 'gpu'], 2, 'is a file, pat', 'Type @pat.'],
    [[url, 'gpu', 'x'], 2, 'the personal access token before it is missing', '@FILE'],
    [['-', url, 'gpu'], 2, 'neither AZP_TOKEN_FILE nor AZP_TOKEN is set', 'Set AZP_TOKEN_FILE'],
    [['@nope', url, 'gpu'], 1, 'nope does not exist', 'Put it into'],
    [['@pat', pat, 'gpu'], 2, 'The address (second argument) is invalid', 'onejob azure PAT URL POOL'],
    [['@pat', 'dev.azure.com/acme', 'gpu'], 2, 'write "https://dev.azure.com/acme"', 'onejob azure PAT URL POOL'],
    [['@pat', url], 2, "missing required argument 'pool'", 'onejob azure --help'],
    [['@pat', url, 'gpu', 'more'], 2, 'too many arguments', 'onejob azure --help'],
    [['@pat', url, 'gpu', '-n', 'x'], 2, 'whole number from 1 to 512', 'onejob azure --help'],
    [['@pat', url, 'gpu', '-n', '0'], 2, 'whole number from 1 to 512', 'onejob azure --help'],
    [['@pat', url, 'gpu', '--name', 'a/b'], 2, 'is not a valid agent name', '--name NAME'],
    [['@pat', url, 'gpu', '--volume', 'x:/y:Z'], 2, 'is not a folder on this host', '--volume HOST:CONTAINER:VARIABLE'],
    [['@pat', url, 'gpu', '--config', 'x.yml'], 2, '--config belongs to "onejob up"', 'onejob up --config FILE'],
    [['@pat', url, 'gpu', '-d', 'not an image'], 1, 'the command line: pools.azure.image', 'Fix the problems'],
  ])('%j', async (args, code, message, hint) => {
    const ran = await type(['azure', ...args]);
    expect(ran).toMatchObject({ code, stdout: '', started: null });
    expect(ran.stderr).toContain(message);
    expect(ran.stderr).toContain(hint);
    expect(ran.stderr).not.toContain(pat);
  });
});

it('the name of the Python manager is taken, and shown nowhere', async () => {
  for (const args of [['--help'], ['completion', 'bash'], ['completion', 'fish']]) {
    const { code, stdout } = await type(args);
    expect(code).toBe(0);
    expect(stdout).toMatch(/\bazure\b/);
    expect(stdout).not.toMatch(/^ {2}manager\b|-a manager\b|azure manager\b|^\s+manager\)/m);
  }
});

it('the real program shows its arguments to nobody', async () => {
  // The only tool it runs looks at all processes above itself, as any user of the host could.
  const seen = join(dir.path, 'seen');
  const tool = join(dir.path, 'nvidia-smi');
  writeFileSync(
    tool,
    `#!/bin/sh
pid=$PPID
while [ "$pid" -gt 1 ]; do
  /usr/bin/tr '\\000' ' ' <"/proc/$pid/cmdline" >>${seen}
  echo >>${seen}
  read -r _ _ _ pid _ <"/proc/$pid/stat"
done
exit 9
`,
  );
  chmodSync(tool, 0o755);
  const program = join(import.meta.dirname, '..', '..', '..', 'bin', 'onejob');
  const env = { PATH: `${dir.path}:${process.env.PATH}`, HOME: dir.path };
  const ran = promisify(execFile)(program, ['azure', pat, url, 'gpu', '--print-config'], { env, cwd: dir.path });
  await ran.catch(() => {});
  const lines = readFileSync(seen, 'utf8')
    .split('\n')
    .map((line) => line.trim());
  expect(lines).toContain('onejob azure');
  expect(lines.join('\n')).not.toContain(pat);
});
