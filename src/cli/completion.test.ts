/** What TAB offers is text, also where somebody else has chosen the names: nothing in them is run, by onejob or by the shells. */
import { spawnSync } from 'node:child_process';
import { chmodSync, existsSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { testContext } from '../../test/support/cli-context.ts';
import { lacks } from '../../test/support/require.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { runCli } from '../cli.ts';
import { readVersion } from './session.ts';

let dir: Scratch;
const at = (...parts: string[]) => join(dir.path, ...parts);
beforeEach(() => {
  dir = scratch();
});
afterEach(() => dir[Symbol.dispose]());

async function asked(...args: string[]): Promise<string> {
  const { context, stdout } = testContext(args, at('state'));
  expect(await runCli(context)).toBe(0);
  return stdout();
}

/** Names that a shell would run, glob, split or take for an option if it expanded them. */
const hostile = [
  '$(touch RAN)',
  '`touch RAN`',
  '$(touch${IFS}RAN)',
  'a;touch RAN',
  'a b',
  '*',
  '~',
  '--host=ssh://evil',
  '-x',
  "a'b",
  'a"b',
  'a\\b',
  'a\u202eb',
  'two\nlines',
  '',
];

describe('names are offered only if they are harmless', () => {
  let server: Server | null = null;
  afterEach(() => new Promise((resolve) => (server === null ? resolve(null) : server.close(resolve))));

  test('by a daemon that lies, such as one of another host', async () => {
    const good = ['j-1', 'ci:0198c/7', 'gpu/1', 'a_b.c@d+e'];
    const names = [...hostile, ...good];
    mkdirSync(at('state'), { mode: 0o700 });
    const version = readVersion();
    server = createServer((request, response) => {
      response.setHeader('onejob-version', version).setHeader('content-type', 'application/json');
      const jobs = names.map((id) => ({ id, name: null, pool: 'p', state: 'done', held: true }));
      const pools = names.map((name) => ({ name, slots: names.map((key) => ({ key })) }));
      response.end(JSON.stringify(request.url?.startsWith('/v1/jobs') ? jobs : { version, pools }));
    }).listen(at('state', 'onejob.sock'));
    await new Promise((resolve) => server?.once('listening', resolve));
    for (const what of ['jobs', 'open-jobs', 'held-jobs', 'pools'])
      expect((await asked('complete', what, '--socket', at('state', 'onejob.sock'))).split('\n').sort()).toEqual(
        ['', ...good].sort(),
      );
    const slots = new Set((await asked('complete', 'slots', '--socket', at('state', 'onejob.sock'))).split('\n'));
    expect([...slots].sort()).toEqual(['', ...good].sort());
  });

  test('by a config that is not valid: none', async () => {
    const cloud = 'type: aws, region: us-west-2, scheduler_role: "arn:aws:iam::123456789012:role/x"';
    const host = '{ cloud: aws, types: [g6.xlarge], pools: { gpu: {} } }';
    const clouds = `clouds: { aws: { ${cloud} } }\njoin: { listen: "127.0.0.1:7718", url: "https://ci.example.org", package: /srv/onejob.tgz }\n`;
    writeFileSync(at('good.yml'), `${clouds}hosts: { burst: ${host} }\n`);
    writeFileSync(at('bad.yml'), `${clouds}hosts: { burst: ${host}, "$(touch RAN)": ${host} }\n`);
    writeFileSync(at('wrong.yml'), `${clouds}hosts: { burst: ${host} }\nnonsense: 1\n`);
    const hosts = (file: string) => asked('complete', 'cloud-hosts', '--config', at(file));
    expect([await hosts('good.yml'), await hosts('bad.yml'), await hosts('wrong.yml')]).toEqual(['burst\n', '', '']);
  });
});

describe('the script expands nothing, whatever it is told', () => {
  const told = hostile.filter((name) => name !== '' && !name.includes('\n'));
  /** A program in place of onejob that gives all these names. */
  beforeEach(() => {
    mkdirSync(at('bin'));
    writeFileSync(at('names'), `${[...told, 'good-1', 'good-2'].join('\n')}\n`);
    writeFileSync(at('bin', 'onejob'), `#!/bin/sh\nexec cat '${at('names')}'\n`);
    chmodSync(at('bin', 'onejob'), 0o755);
    mkdirSync(at('here'));
  });
  /** Nothing was run. */
  afterEach(() => expect(existsSync(at('here', 'RAN'))).toBe(false));
  const run = (shell: string, ...args: string[]) => {
    const env = { PATH: `${at('bin')}:${process.env.PATH}`, HOME: dir.path, TERM: 'xterm', LC_ALL: 'C.UTF-8' };
    const { stdout, stderr, error } = spawnSync(shell, args, { cwd: at('here'), env, encoding: 'utf8', timeout: 60_000 });
    expect([error, stderr]).toEqual([undefined, '']);
    return stdout.split('\n').filter((line) => line !== '');
  };
  const scriptOf = async (shell: string) => writeFileSync(at('script'), await asked('completion', shell));

  test('in bash', async () => {
    await scriptOf('bash');
    const offered = (...words: string[]) => {
      const list = ['onejob', ...words].map((word) => `'${word}'`).join(' ');
      const ask = `. '${at('script')}'; COMP_WORDS=(${list}); COMP_CWORD=${words.length}; _onejob; printf '%s\\n' "\${COMPREPLY[@]}"`;
      return run('bash', '--norc', '-c', ask);
    };
    expect(offered('logs', 'good')).toEqual(['good-1', 'good-2']);
    expect(offered('logs', '$(t')).toEqual(
      ['$(touch RAN)', '$(touch${IFS}RAN)'].slice(0, 2).filter((name) => name.startsWith('$(t')),
    );
    expect(offered('logs', '')).toEqual(expect.arrayContaining(told));
    expect(offered('jobs', 'pr')).toEqual(['prune']);
    expect(offered('run', '--pool', 'good')).toEqual(['good-1', 'good-2']);
    expect(offered('cloud', 'down', '--config', '$(touch RAN)', '')).toEqual(expect.arrayContaining(['good-1']));
  });

  test('in bash, which quotes names of files', async () => {
    await scriptOf('bash');
    writeFileSync(at('here', '$(touch RAN)'), '');
    // A terminal is the only way to see what the command line becomes.
    const inner = `exec bash --norc -i`;
    const keys = `. '${at('script')}'\nonejob run -- cat \\$\\(\t\nexit\n`;
    const env = { PATH: `${at('bin')}:${process.env.PATH}`, HOME: dir.path, TERM: 'xterm', PS1: '' };
    spawnSync('script', ['-qec', inner, '/dev/null'], { cwd: at('here'), env, input: keys, timeout: 60_000 });
    expect(readdirSync(at('here'))).toEqual(['$(touch RAN)']);
  });

  test.skipIf(lacks('zsh'))('in zsh', async () => {
    await scriptOf('zsh');
    // A shell in a terminal of its own, which gets a TAB.
    const ask = `zmodload zsh/zpty; zpty z zsh -f -i
      zpty -w z "PS1=; autoload -U compinit; compinit -u -D; . '${at('script')}'; echo rea''dy"
      while zpty -r z line; do [[ $line = *ready* ]] && break; done
      zpty -n -w z $'onejob logs good-\\t\\t; echo en\\'\\'ded\\n'
      while zpty -r z line; do print -r -- "$line"; [[ $line = *ended* ]] && break; done
      zpty -n -w z $'onejob logs \\t\\t\\C-u echo la\\'\\'st\\n'
      while zpty -r z line; do [[ $line = *last* ]] && break; done
      zpty -d z`;
    expect(run('zsh', '-f', '-c', ask).join('\n')).toMatch(/good-1 +good-2/);
  });

  test.skipIf(lacks('fish'))('in fish', async () => {
    await scriptOf('fish');
    const offered = run('fish', '--no-config', '-c', `source '${at('script')}'; complete -C 'onejob logs '`);
    expect(offered.map((line) => line.split('\t')[0])).toEqual(expect.arrayContaining(['good-1', '$(touch RAN)']));
  });
});
