/** The script that looks from within a sandbox, run by this host's own shell, and what is made of what it says. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { json, page, type Reply, serve } from '../../../../test/kit/azure.ts';
import { type Scratch, scratch } from '../../../../test/support/scratch.ts';
import { type Inside, lackFindings, lookScript, readLook, wayFinding } from './doctor-inside.ts';

let dir: Scratch;
const open: AsyncDisposable[] = [];
beforeEach(() => {
  dir = scratch();
  for (const name of ['bin', 'tmp', 'home']) mkdirSync(join(dir.path, name));
});
afterEach(async () => {
  for (const one of open.splice(0)) await one[Symbol.asyncDispose]();
  dir[Symbol.dispose]();
});

const at = (name: string) => join(dir.path, name);

/** `programs`: of this host. `agent`: a script in its place. */
async function look(
  script: string,
  programs: readonly string[],
  { agent, env = {} }: { readonly agent?: string; readonly env?: Record<string, string> } = {},
): Promise<Inside> {
  for (const name of ['sleep', 'chmod', 'rm', ...programs]) symlinkSync(`/bin/${name}`, join(at('bin'), name));
  if (agent !== undefined) writeFileSync(join(at('bin'), 'buildkite-agent'), `#!/bin/sh\n${agent}\n`, { mode: 0o755 });
  const child = spawn('/bin/sh', ['-c', `(\n${script}\n)`], {
    env: { PATH: at('bin'), TMPDIR: at('tmp'), HOME: at('home'), ...env },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const said = await text(child.stdout);
  expect(child.exitCode ?? (await once(child, 'exit'))[0]).toBe(0);
  return readLook(said);
}

async function filter(reply: Reply = json({ message: 'The token is invalid or no longer valid.' }, 401)): Promise<number> {
  const server = await serve(reply);
  open.push(server);
  return Number(new URL(server.url).port);
}

const filterAt = (address: string, port: number) => ({ endpoint: `http://${address}:${port}/v3`, isFilter: true });

const version = 'buildkite-agent version 3.137.0+10';
const agentThat = (does: string) => `[ "$1" = --version ] && { echo "${version}"; exit 0; }\n${does}`;

it('says which programs there are, and where can be written and run', async () => {
  const found = await look(lookScript(null), ['bash'], { agent: agentThat('exit 1') });
  expect(found).toEqual({
    programs: new Set(['bash', 'buildkite-agent']),
    agent: '3.137.0',
    temporary: { path: at('tmp'), works: true },
    home: { path: at('home'), works: true },
    reached: null,
  });
});

it('says what does not work', async () => {
  const found = await look(lookScript(null), [], { env: { TMPDIR: '/proc', HOME: '' }, agent: 'exit 126' });
  expect(found).toMatchObject({ agent: null, temporary: { path: '/proc', works: false }, home: { path: '', works: false } });
  expect(found.programs).toEqual(new Set(['buildkite-agent']));
});

describe('the way to the filter', () => {
  const way = (found: Inside, network = 'lab', isFilter = true) =>
    wayFinding('pool p', 'agents of pool p', { endpoint: 'http://127.0.0.1:7070/v3', isFilter, network }, found);

  it('is tried with bash where there is no agent', async () => {
    const found = await look(lookScript(filterAt('127.0.0.1', await filter())), ['bash']);
    expect(found.reached).toContain('401');
    expect(way(found)).toMatchObject({ level: 'ok', hint: null });
  });

  it('is tried with the agent where it is there', async () => {
    const says =
      'echo "fatal: POST $BUILDKITE_AGENT_ENDPOINT: 401 Unauthorized: The token is invalid or no longer valid." >&2; exit 1';
    const found = await look(lookScript(filterAt('10.1.2.3', 7070)), ['bash'], { agent: agentThat(says) });
    expect(found.reached).toContain('http://10.1.2.3:7070/v3');
    expect(way(found).level).toBe('ok');
  });

  it.each([
    ['a page', page(200), []],
    ['another refusal', json({ message: 'Forbidden' }, 403), []],
  ])('%s is not the filter', async (_, reply) => {
    const found = await look(lookScript(filterAt('127.0.0.1', await filter(reply))), ['bash']);
    expect(way(found)).toMatchObject({ level: 'error', message: expect.stringContaining('cannot be reached from network "lab"') });
  });

  it('a port where nobody listens is told with the line that opens a firewall', async () => {
    const found = await look(lookScript(filterAt('127.0.0.1', 1)), ['bash']);
    expect(way(found)).toEqual({
      level: 'error',
      subject: 'pool p',
      message: 'The filter at 127.0.0.1:7070 cannot be reached from network "lab" by agents of pool p: Connection refused.',
      hint: expect.stringMatching(
        /"ufw allow to 127\.0\.0\.1 port 7070 proto tcp".*"iptables -I INPUT -d 127\.0\.0\.1 -p tcp --dport 7070 -j ACCEPT"/,
      ),
    });
  });

  it('one that never answers is given up', async () => {
    const server = createServer(() => {}).listen(0, '127.0.0.1');
    await once(server, 'listening');
    const found = await look(lookScript(filterAt('127.0.0.1', (server.address() as AddressInfo).port), 1), ['bash']);
    expect(way(found)).toMatchObject({ level: 'error', message: expect.stringContaining('no answer within') });
    server.close();
  });

  it('an agent that hangs is given up, and what it said before is told', async () => {
    const agent = agentThat('echo "dial tcp 10.1.2.3:7070: connect: no route to host" >&2; exec sleep 60');
    const found = await look(lookScript(filterAt('10.1.2.3', 7070), 3), [], { agent });
    expect(way(found).message).toMatch(/: no route to host\.$/);
  });

  it('with nothing to try it with nobody knows', async () => {
    expect(way(await look(lookScript(filterAt('127.0.0.1', 1)), []))).toMatchObject({
      level: 'warning',
      hint: expect.stringContaining('"agent"'),
    });
  });

  it('the hint says how long it holds on a network of our own', async () => {
    const found = { ...(await look(lookScript(null), [])), reached: 'dial tcp: connect: connection refused' };
    expect(way(found, 'default').hint).toContain('onejob recreates the network after "onejob down"');
  });

  it('of a trusted job leads to the service itself, and a proxy, or certificates, may be missing', async () => {
    const found = { ...(await look(lookScript(null), [])), reached: 'x509: certificate signed by unknown authority' };
    expect(way(found, 'default', false)).toMatchObject({
      level: 'error',
      message: expect.stringContaining('http://127.0.0.1:7070/v3 cannot be reached from network "default"'),
      hint: expect.stringMatching(/HTTPS_PROXY.*CA certificates/),
    });
  });

  it('what a sandbox says moves no cursor', async () => {
    const found = { ...(await look(lookScript(null), [])), reached: '\u001b[2Jodd\u0007 things\u001b[0m' };
    expect(way(found).message).toMatch(/: odd things\.$/);
  });
});

describe('what jobs would lack', () => {
  const all: Inside = {
    programs: new Set(['bash', 'git', 'buildkite-agent']),
    agent: '3.137.0',
    temporary: { path: '/tmp', works: true },
    home: { path: '/root', works: true },
    reached: null,
  };
  const lack = (change: Partial<Inside>, mounted = true, image: string | null = 'x:1', isWithoutGit = false) =>
    lackFindings('pool p', { ...all, ...change }, { image, mounted, isWithoutGit }).map(
      ({ level, message, hint }) => `${level}: ${message} ${hint}`,
    );

  it('nothing', () => expect(lack({})).toEqual([expect.stringMatching(/^ok: .*bash, git, agent 3\.137\.0/)]));

  it.each<[string, Partial<Inside>, RegExp]>([
    [
      'git',
      { programs: new Set(['bash', 'buildkite-agent']) },
      /^error: There is no git in image "x:1".*packages: \[git\].*BUILDKITE_SKIP_CHECKOUT: "true"/,
    ],
    ['both', { programs: new Set(['buildkite-agent']) }, /^error: There is neither bash nor git .*packages: \[bash, git\]/],
    ['a way to run scripts', { temporary: { path: '/tmp', works: false } }, /^error: Cannot run anything in \/tmp.*"exec"/],
    ['a home', { home: { path: '/nope', works: false } }, /^warning: Cannot write to HOME, \/nope/],
    ['an agent that runs', { agent: null }, /^error: buildkite-agent does not run in image "x:1".*architecture/],
  ])('%s', (_, change, line) => expect(lack(change)).toEqual([expect.stringMatching(line)]));

  it('no git where nothing is checked out', () => {
    expect(lack({ programs: new Set(['bash', 'buildkite-agent']) }, true, 'x:1', true)).toEqual([
      expect.stringMatching(/^ok: .*bash, agent 3\.137\.0/),
    ]);
  });

  it('the agent that the image should bring', () => {
    expect(lack({ agent: null, programs: new Set(['bash', 'git']) }, false)).toEqual([
      expect.stringMatching(/^error: There is no buildkite-agent in image "x:1"\. .*from: image/),
    ]);
  });

  it('on this host it is installed, not put into an image', () => {
    expect(lack({ programs: new Set(['bash', 'buildkite-agent']) }, true, null)).toEqual([
      expect.stringContaining('Install git on this host.'),
    ]);
  });
});
