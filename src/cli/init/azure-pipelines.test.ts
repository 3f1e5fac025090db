/** `init` against the stand-in for Azure DevOps: with options alone, and with a person at a terminal. */

import { chmodSync, existsSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { emptyEnvironment } from '../../../test/kit/config.ts';
import { type AzureDevOps, startAzureDevOps } from '../../../test/standins/azure-devops/standin.ts';
import { testContext } from '../../../test/support/cli-context.ts';
import { type Scratch, scratch } from '../../../test/support/scratch.ts';
import { runCli } from '../../cli.ts';
import { lookAtHost } from '../../config/host-look.ts';
import { checkConfig } from '../../config/load.ts';
import { types } from '../types.ts';

let azure: AzureDevOps;
let dir: Scratch;
beforeAll(async () => {
  azure = await startAzureDevOps();
  azure.addPool('gpu');
  azure.addPool('lab');
});
afterAll(() => azure[Symbol.asyncDispose]());
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
  const { context, stdout, stderr } = testContext(['init', ...args], dir.path, { stdin: () => stdin });
  const left = [...(answers ?? [])];
  let from = 0;
  context.stderr.on('data', () => {
    const [next] = left;
    if (next === undefined || !next[0].test(stderr().slice(from))) return;
    left.shift();
    from = stderr().length;
    setImmediate(() => stdin.write(next[1]));
  });
  const environment = {
    ...context.environment,
    config: null,
    configHome: at('home'),
    uid: 1000,
    path: dir.path,
    hostRoot: dir.path,
  };
  const code = await runCli({ ...context, environment });
  return { code, stdout: stdout(), stderr: stderr(), left: left.length };
}

const all = (more: readonly string[] = []) => [
  'azure-pipelines',
  '--config',
  at('config.yml'),
  '--url',
  azure.url,
  '--pool',
  'gpu',
  ...more,
];

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

describe('without a terminal', () => {
  it('writes what it was told, once the service has said that it is right', async () => {
    writeFileSync(at('pat'), `${azure.pat}\n`, { mode: 0o600 });
    const { code, stdout, stderr } = await init(all(['--token-file', 'pat', '--agents', '3', '--expires', '2099-05-01']));
    expect({ code, stderr }).toEqual({ code: 0, stderr: expect.stringContaining('There is an agent pool "gpu".') });
    expect(stdout).toContain(`onejob up --config ${at('config.yml')}`);
    expect(stdout + stderr + readFileSync(at('config.yml'), 'utf8')).not.toContain(azure.pat);
    expect(mode('config.yml')).toBe(0o600);
    expect(await load()).toMatchObject({
      services: [{ url: azure.url, credential: { kind: 'pat', token: { path: at('pat'), expires: Date.UTC(2099, 4, 2) - 1 } } }],
      pools: [{ name: 'azure', service: 'azure', queue: 'gpu', agents: 3, devices: { count: 0 }, imageRecipe: { base: 'auto' } }],
    });
  });

  it('--yes takes what is usual', async () => {
    writeFileSync(at('azure.pat'), azure.pat, { mode: 0o600 });
    expect(await init(all(['--yes']))).toMatchObject({ code: 0 });
    expect((await load()).pools[0]?.agents).toBe(2);
  });

  it('per-device is accepted on a host without cards, with an explanation', async () => {
    writeFileSync(at('azure.pat'), azure.pat, { mode: 0o600 });
    const { code, stderr } = await init(all(['--agents', 'per-device']));
    expect({ code, stderr }).toEqual({ code: 0, stderr: expect.stringContaining('no agent starts until it has one') });
    expect((await load()).pools[0]).toMatchObject({ agents: 'per-device', devices: { count: 1 } });
  });

  it.each([
    [['--agents', 'many'], 'Invalid value for --agents'],
    [['--agents', '2', '--expires', 'soon'], 'Invalid value for --expires'],
  ])('%j is judged before the service is asked', async (more, message) => {
    writeFileSync(at('azure.pat'), azure.pat, { mode: 0o600 });
    const before = azure.log.length;
    expect(await init(all(more))).toMatchObject({ code: 2, stderr: expect.stringContaining(message) });
    expect(azure.log.length).toBe(before);
  });

  it('warns of a token file that everybody can read', async () => {
    writeFileSync(at('azure.pat'), azure.pat);
    chmodSync(at('azure.pat'), 0o644);
    const { code, stderr } = await init(all(['--yes']));
    expect({ code, stderr }).toEqual({
      code: 0,
      stderr: expect.stringMatching(/can be used by every user of this host \(mode 644\)/),
    });
    expect(stderr.match(/mode 644/g)).toHaveLength(1);
  });

  it('names every missing option', async () => {
    const { code, stderr } = await init(['azure-pipelines', '--config', at('config.yml')]);
    expect(code).toBe(2);
    for (const option of ['--url URL', '--pool NAME', '--token-file FILE', '--agents N']) expect(stderr).toContain(option);
    expect(written()).toEqual([]);
  });

  it.each([
    [
      'a token that the service does not take',
      'wrong'.repeat(10),
      [],
      1,
      /the token from file \S+pat[\s\S]*Restart onejob with it\./,
    ],
    ['a token file that is not there', null, [], 1, /The token file \S+pat does not exist\..*\n.*install -D -m 600/],
    ['a token file with more than a token', 'to ken', [], 1, /personal access token is malformed/],
    ['a pool that is not there', '', ['--pool', 'nope'], 1, /no agent pool "nope". It has: Default, gpu, lab\./],
    ['an invalid address', '', ['--url', 'acme'], 2, /Invalid value for --url. Expected a web address/],
    ['no number of agents', '', ['--agents', 'many'], 2, /Invalid value for --agents. Write a number from 1 to 512/],
    ['no day', '', ['--expires', '2027-02-30'], 2, /Invalid value for --expires. Write a day/],
  ])('%s is told, and nothing is written', async (_, token, more, code, message) => {
    if (token !== null) writeFileSync(at('pat'), token || azure.pat, { mode: 0o600 });
    const ran = await init(all(['--token-file', 'pat', '--agents', '1', ...more]));
    expect(ran).toMatchObject({ code, stderr: expect.stringMatching(message) });
    expect(ran.stderr).not.toContain(token || azure.pat);
    expect(existsSync(at('config.yml'))).toBe(false);
  });

  it('a service that is away keeps nobody from writing the config', async () => {
    writeFileSync(at('pat'), azure.pat, { mode: 0o600 });
    const args = all(['--token-file', 'pat', '--yes']).map((one) => (one === azure.url ? 'http://127.0.0.1:1/acme' : one));
    const { code, stderr } = await init(args);
    expect({ code, stderr }).toEqual({
      code: 0,
      stderr: expect.stringMatching(/could not check the token; "onejob doctor" checks/),
    });
    expect((await load()).pools[0]?.queue).toBe('gpu');
  });

  it('a config that is there stays, unless --force is said', async () => {
    writeFileSync(at('pat'), azure.pat, { mode: 0o600 });
    writeFileSync(at('config.yml'), 'pools: {}\n');
    const refused = await init(all(['--token-file', 'pat', '--yes']));
    expect(refused).toMatchObject({
      code: 1,
      stderr: expect.stringMatching(/Refusing to overwrite the existing file \S+config\.yml.*\n.*--force/),
    });
    expect(readFileSync(at('config.yml'), 'utf8')).toBe('pools: {}\n');
    expect(await init(all(['--token-file', 'pat', '--yes', '--force']))).toMatchObject({ code: 0 });
    expect((await load()).pools[0]?.queue).toBe('gpu');
  });

  it('reports a place that cannot be written to', async () => {
    writeFileSync(at('pat'), azure.pat, { mode: 0o600 });
    const args = all(['--token-file', 'pat', '--yes']).map((one) =>
      one === at('config.yml') ? join(at('pat'), 'config.yml') : one,
    );
    expect(await init(args)).toMatchObject({ code: 1, stderr: expect.stringMatching(/Cannot write \S+pat\/config\.yml: /) });
  });
});

describe('with a person', () => {
  it('asks for all of it, again where an answer is wrong, and shows the token nowhere', async () => {
    const { code, stdout, stderr, left } = await init(
      ['azure-pipelines', '--config', at('config.yml')],
      [
        [/Address of the organisation/, 'acme\n'],
        [/Expected a web address[\s\S]*Address/, `${azure.url}/project/_settings/agentqueues\n`],
        [/access token/, 'wrongwrongwrong\n'],
        [/does not accept the token[\s\S]*access token/, `${azure.pat}\n`],
        [/agent pool: /, 'nope\n'],
        [/It has: Default, gpu, lab[\s\S]*agent pool: /, 'gpu\n'],
        [/Number of agents \[2\]/, '\n'],
        [/Last day/, '2099-01-01\n'],
        [/Write \S+config\.yml and \S+azure\.pat\? \[yes\]/, '\n'],
      ],
    );
    expect({ code, left }).toEqual({ code: 0, left: 0 });
    expect(stdout).toContain('onejob doctor');
    for (const secret of [azure.pat, 'wrongwrongwrong']) expect(stdout + stderr).not.toContain(secret);
    expect([mode('config.yml'), mode('azure.pat')]).toEqual([0o600, 0o600]);
    expect(readFileSync(at('azure.pat'), 'utf8')).toBe(`${azure.pat}\n`);
    expect(await load()).toMatchObject({
      services: [{ url: azure.url, credential: { token: { path: at('azure.pat') } } }],
      pools: [{ agents: 2 }],
    });
  });

  it('asks only for what was not said, and one who says no has nothing written', async () => {
    const { code, stderr, left } = await init(all(['--agents', '2', '--expires', '2099-01-01']), [
      [/access token/, `${azure.pat}\n`],
      [/Write/, 'no\n'],
    ]);
    expect({ code, left }).toEqual({ code: 1, left: 0 });
    expect(stderr).toContain('nothing was written');
    expect(written()).toEqual([]);
  });

  it.each([
    ['Ctrl-C', '\u0003', 130],
    ['Ctrl-D', '\u0004', 2],
  ])('%s ends it, and nothing is written', async (_, typed, ends) => {
    const { code, stderr } = await init(all(), [[/access token/, typed]]);
    expect({ code, stderr }).toEqual({ code: ends, stderr: expect.stringContaining('nothing was written') });
    expect(written()).toEqual([]);
  });
});

it('without a service it lists the services; it reports an unknown service', async () => {
  expect(await init([])).toMatchObject({ code: 0, stdout: expect.stringContaining('onejob init azure-pipelines') });
  expect(await init(['jenkins'])).toMatchObject({ code: 2, stdout: '' });
});
