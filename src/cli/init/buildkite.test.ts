/** `init buildkite` against the stand-in for Buildkite: with options alone, and with a person at a terminal. */

import { readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { emptyEnvironment } from '../../../test/kit/config.ts';
import { type BuildkiteStandin, startBuildkite } from '../../../test/standins/buildkite/standin.ts';
import { testContext } from '../../../test/support/cli-context.ts';
import { type Scratch, scratch } from '../../../test/support/scratch.ts';
import { runCli } from '../../cli.ts';
import { lookAtHost } from '../../config/host-look.ts';
import { checkConfig } from '../../config/load.ts';
import { types } from '../types.ts';

let buildkite: BuildkiteStandin;
let bound: string;
let dir: Scratch;
beforeAll(async () => {
  buildkite = await startBuildkite();
  bound = buildkite.addToken({ kind: 'registration', queue: 'gpu' });
});
afterAll(() => buildkite[Symbol.asyncDispose]());
beforeEach(() => {
  dir = scratch();
});
afterEach(() => dir[Symbol.dispose]());

const at = (name: string) => join(dir.path, name);
const mode = (name: string) => statSync(at(name)).mode & 0o777;
const written = () => readdirSync(dir.path).toSorted();

/** `answers`: what is typed after each prompt that matches; none: there is no terminal. */
async function init(args: readonly string[], answers?: readonly (readonly [RegExp, string])[]) {
  const stdin = Object.assign(new PassThrough(), { isTTY: answers !== undefined });
  const all = ['init', 'buildkite', '--config', at('config.yml'), '--endpoint', buildkite.endpoint, ...args];
  const { context, stdout, stderr } = testContext(all, dir.path, { stdin: () => stdin });
  const left = [...(answers ?? [])];
  let from = 0;
  context.stderr.on('data', () => {
    const [next] = left;
    if (next === undefined || !next[0].test(stderr().slice(from))) return;
    left.shift();
    from = stderr().length;
    setImmediate(() => stdin.write(next[1]));
  });
  const { environment: usual } = context;
  const environment = { ...usual, config: null, configHome: at('home'), uid: 1000, path: dir.path, hostRoot: dir.path };
  const code = await runCli({ ...context, environment });
  return { code, stdout: stdout(), stderr: stderr(), left: left.length };
}

async function load() {
  const { config, errors, warnings } = await checkConfig({
    types,
    look: lookAtHost,
    flags: { config: at('config.yml') },
    env: emptyEnvironment(),
  });
  expect([...errors, ...warnings]).toEqual([]);
  return config;
}

const token = (value = buildkite.token) => writeFileSync(at('token'), `${value}\n`, { mode: 0o600 });
const given = ['--token-file', 'token', '--agents', '3'];

describe('without a terminal', () => {
  it('writes what it was told, once the service has said whose token it is', async () => {
    token();
    const { code, stdout, stderr } = await init([...given, '--queue', 'default', '--expires', '2099-05-01']);
    expect({ code, stderr }).toEqual({
      code: 0,
      stderr: expect.stringContaining('accepts the token of organisation acme, cluster "Lab"'),
    });
    expect(stderr).toContain('Queue "default" exists; 0 jobs wait in it.');
    expect(stdout).toContain(`onejob up --config ${at('config.yml')}`);
    expect(stdout).toContain('queue: default');
    expect(stdout + stderr + readFileSync(at('config.yml'), 'utf8')).not.toContain(buildkite.token);
    expect(mode('config.yml')).toBe(0o600);
    expect(await load()).toMatchObject({
      services: [
        { type: 'buildkite', endpoint: buildkite.endpoint, token: { path: at('token'), expires: Date.UTC(2099, 4, 2) - 1 } },
      ],
      pools: [
        {
          name: 'buildkite',
          service: 'buildkite',
          queue: 'default',
          agents: 3,
          devices: { count: 0 },
          imageRecipe: { base: 'auto', packages: ['openssh-client'] },
        },
      ],
    });
  });

  it('--json names what was written', async () => {
    token();
    const { code, stdout } = await init([...given, '--yes', '--json']);
    expect({ code, said: JSON.parse(stdout) }).toEqual({ code: 0, said: { written: [at('config.yml')] } });
  });

  it("takes the queue of a token that is for one queue, and refuses another's", async () => {
    token(bound);
    expect(await init([...given, '--queue', 'default'])).toMatchObject({
      code: 1,
      stderr: expect.stringContaining('The token is only for queue "gpu", not for "default".'),
    });
    expect(await init([...given, '--yes'])).toMatchObject({ code: 0 });
    expect((await load()).pools[0]?.queue).toBe('gpu');
  });

  it('a queue that nobody has heard of is refused, and with --force told and written', async () => {
    token();
    for (const more of [[], ['--yes']]) {
      const refused = await init([...given, '--queue', 'nope', ...more]);
      expect(refused).toMatchObject({ code: 2, stderr: expect.stringMatching(/does not list queue "nope"[\s\S]*--force/) });
      expect(written()).toEqual(['token']);
    }
    const { code, stderr } = await init([...given, '--queue', 'nope', '--force']);
    expect({ code, stderr }).toEqual({ code: 0, stderr: expect.stringContaining('does not list queue "nope"') });
  });

  it('a service that is away keeps nobody from writing the config', async () => {
    token();
    const { code, stderr } = await init([...given, '--queue', 'gpu', '--endpoint', 'http://127.0.0.1:1/v3']);
    expect({ code, stderr }).toEqual({
      code: 0,
      stderr: expect.stringContaining('onejob could not check the token; "onejob doctor" checks it when the service answers.'),
    });
  });

  it.each([
    [
      'a token that the service does not take',
      'bkct_wrongwrongwrong',
      ['--queue', 'default'],
      1,
      /The service refuses the token\..*answered 401/,
    ],
    ['an API token', 'bkua_1234567890', ['--queue', 'default'], 1, /an API access token/],
    ['a file with more than a token', 'to ken', ['--queue', 'default'], 1, /agent token is malformed/],
    ['no queue', '', [], 2, /--queue QUEUE/],
    ['an invalid queue', '', ['--queue', 'a b'], 2, /Invalid value for --queue/],
    ['no endpoint', '', ['--queue', 'q', '--endpoint', 'ftp://x'], 2, /Invalid value for --endpoint/],
  ])('%s is told, and nothing is written', async (_, value, more, code, said) => {
    token(value === '' ? buildkite.token : value);
    const { stderr, ...ran } = await init([...given, ...more]);
    expect({ code: ran.code, stderr }).toEqual({ code, stderr: expect.stringMatching(said) });
    if (value !== '') expect(stderr).not.toContain(value);
    expect(written()).toEqual(['token']);
  });

  it('a config that is there stays, unless --force is said', async () => {
    token();
    writeFileSync(at('config.yml'), 'pools: {}\n');
    expect(await init([...given, '--yes'])).toMatchObject({
      code: 1,
      stderr: expect.stringContaining('Refusing to overwrite the existing file'),
    });
    expect(readFileSync(at('config.yml'), 'utf8')).toBe('pools: {}\n');
    expect(await init([...given, '--yes', '--force'])).toMatchObject({ code: 0 });
  });
});

describe('with a person', () => {
  it('asks for all of it, again where an answer is wrong, and shows the token nowhere', async () => {
    const { code, stdout, stderr, left } = await init(
      [],
      [
        [/Agent token/, 'bkct_wrongwrongwrong\n'],
        [/answered 401[\s\S]*Agent token/, `${bound}\n`],
        [/Queue that the agents take jobs from \[gpu\]/, 'default\n'],
        [/only for queue "gpu"[\s\S]*Queue/, '\n'],
        [/Number of agents \[2\]/, '\n'],
        [/Last day/, '\n'],
        [/Write \S+config\.yml and \S+buildkite\.token\? \[yes\]/, '\n'],
      ],
    );
    expect({ code, left }).toEqual({ code: 0, left: 0 });
    for (const secret of [bound, 'bkct_wrongwrongwrong']) expect(stdout + stderr).not.toContain(secret);
    expect([mode('config.yml'), mode('buildkite.token')]).toEqual([0o600, 0o600]);
    expect(readFileSync(at('buildkite.token'), 'utf8')).toBe(`${bound}\n`);
    expect(await load()).toMatchObject({
      services: [{ token: { path: at('buildkite.token') } }],
      pools: [{ queue: 'gpu', agents: 2 }],
    });
  });

  it('a queue that nobody has heard of is asked for again, and taken when it is typed again', async () => {
    token();
    const { code, left } = await init(
      [...given],
      [
        [/Queue that the agents take jobs from/, 'nope\n'],
        [/does not list queue "nope"[\s\S]*Type it again[\s\S]*Queue/, 'nope\n'],
        [/Last day/, '\n'],
        [/Write/, 'yes\n'],
      ],
    );
    expect({ code, left }).toEqual({ code: 0, left: 0 });
    expect((await load()).pools[0]?.queue).toBe('nope');
  });

  it('one who leaves, or says no, has nothing written', async () => {
    const left = await init([], [[/Agent token/, '\u0003']]);
    expect(left).toMatchObject({ code: 130, stderr: expect.stringMatching(/\nonejob: nothing was written\n$/) });
    expect(left.stderr).not.toContain('The answers ended');
    const no = await init(
      ['--queue', 'gpu', '--agents', '1', '--expires', ''],
      [
        [/Agent token/, `${bound}\n`],
        [/Write/, 'no\n'],
      ],
    );
    expect(no).toMatchObject({ code: 1, left: 0, stderr: expect.stringContaining('nothing was written') });
    expect(written()).toEqual([]);
  });
});
