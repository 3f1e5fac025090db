import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { agentIn, runIn, shells } from '../../../test/kit/azure-shells.ts';
import { type Scratch, scratch } from '../../../test/support/scratch.ts';
import { configuringAgent, readyAgent, startingImage } from './script.ts';

const files = [
  { name: '.agent', text: '{"agentName":"it\'s \\"one\\" $HOME `id` \\\\n"}' },
  { name: '.credentials', text: '{}' },
  { name: '.credentials_rsaparams', text: '{"d":"-n"}' },
];
const self = { url: 'https://example.org/a%20b', pool: "the pool's", name: 'box-1', token: "to'ken" };
const mode = (path: string) => (statSync(path).mode & 0o777).toString(8);
/** Says how it was called, and with which surroundings. */
const listener = 'printf "%s|" "$@"; printf "%s|%s|%s" "$(pwd)" "$(umask)" "$AGENT_DIAGLOGPATH"; exit 7';
const partsOf = (dir: Scratch, root: string, uid = 1000) => ({
  root,
  uid,
  isWritable: true,
  capabilities: { cuda: '12.4', 'a b': "it's" },
  workspace: join(dir.path, "a job's workspace"),
});

describe.each(shells)('in %s', (...shell) => {
  it('writes the files for their owner only, byte by byte, and becomes the agent', () => {
    using dir = scratch();
    const root = agentIn(dir.path, listener);
    const parts = partsOf(dir, root);
    const { code, out } = runIn(shell, `umask 022\n${readyAgent(parts, files)}`);
    expect(code).toBe(7);
    const folder = `${parts.workspace}/.onejob-diag`;
    expect(out).toBe(`run|--once|${root}|0022|${folder}`);
    for (const { name, text } of files) {
      expect(readFileSync(join(root, name), 'utf8')).toBe(text);
      expect(mode(join(root, name))).toBe('600');
    }
    expect(readFileSync(join(root, '.capabilities'), 'utf8')).toBe("cuda=12.4\na b=it's\n");
    expect(existsSync(folder)).toBe(true);
  });

  it('keeps what the image says its agents can do, also without a last end of line', () => {
    using dir = scratch();
    const root = agentIn(dir.path, listener);
    writeFileSync(join(root, '.capabilities'), 'own=1');
    runIn(shell, readyAgent(partsOf(dir, root), files));
    expect(readFileSync(join(root, '.capabilities'), 'utf8').split('\n').filter(Boolean)).toEqual([
      'own=1',
      'cuda=12.4',
      "a b=it's",
    ]);
  });

  it('becomes a copy of an agent whose folder it cannot write to, and leaves that as it is', () => {
    using dir = scratch();
    const root = agentIn(dir.path, listener);
    writeFileSync(join(root, '.capabilities'), 'own=1\n', { mode: 0o444 });
    const before = readdirSync(root);
    const parts = { ...partsOf(dir, root), isWritable: false };
    const home = join(parts.workspace, '.onejob/agent');
    expect(runIn(shell, readyAgent(parts, files)).out).toContain(`run|--once|${home}|`);
    expect(readFileSync(join(home, '.capabilities'), 'utf8')).toContain("own=1\n\ncuda=12.4\na b=it's\n");
    expect(mode(join(home, '.credentials'))).toBe('600');
    expect(readdirSync(root)).toEqual(before);
  });

  it('replaces files that others may read, which came with the image, and keeps nothing of their mode', () => {
    using dir = scratch();
    const root = agentIn(dir.path, listener);
    writeFileSync(join(root, '.credentials'), 'of the image', { mode: 0o644 });
    runIn(shell, readyAgent(partsOf(dir, root), files));
    expect([mode(join(root, '.credentials')), readFileSync(join(root, '.credentials'), 'utf8')]).toEqual(['600', '{}']);
  });

  it('begins nothing where the agent is not', () => {
    using dir = scratch();
    const { code, out } = runIn(shell, readyAgent(partsOf(dir, join(dir.path, 'absent')), files));
    expect({ code, out }).toEqual({ code: 1, out: '' });
  });

  it('lets root run an agent only where root is who runs it', () => {
    using dir = scratch();
    const root = agentIn(dir.path, 'printf "%s" "$AGENT_ALLOW_RUNASROOT"');
    const said = (uid: number) => runIn(shell, readyAgent(partsOf(dir, root, uid), files)).out;
    expect([said(0), said(1000)]).toEqual(['1', '']);
  });

  it('has nothing of the token left when the agent that made itself known begins', () => {
    using dir = scratch();
    const root = agentIn(dir.path, 'cat /proc/self/environ; cat /proc/$$/cmdline; cat "$(dirname "$0")/../seen"');
    writeFileSync(join(root, 'config.sh'), '#!/bin/sh\nprintf "%s|" "$@" "$VSTS_AGENT_INPUT_TOKEN" >seen\n', { mode: 0o755 });
    const { out } = runIn(shell, configuringAgent(partsOf(dir, root), self));
    const [before = '', seen = ''] = out.split('--unattended');
    expect(before).not.toContain("to'ken");
    expect(seen).toBe(
      "|--acceptTeeEula|--replace|--auth|pat|--url|https://example.org/a%20b|--pool|the pool's|--agent|box-1|--work|_work|to'ken|",
    );
  });

  it('ends when the agent cannot make itself known', () => {
    using dir = scratch();
    const root = agentIn(dir.path, 'echo began');
    writeFileSync(join(root, 'config.sh'), '#!/bin/sh\nexit 3\n', { mode: 0o755 });
    expect(runIn(shell, configuringAgent(partsOf(dir, root), self))).toEqual({ code: 1, out: '' });
  });

  it("keeps to itself what an image's own start script was to keep to itself", () => {
    using dir = scratch();
    const start = join(dir.path, 'start.sh');
    writeFileSync(start, '#!/bin/sh\nprintf "%s" "$VSO_AGENT_IGNORE"\n', { mode: 0o755 });
    const { out } = runIn(shell, startingImage(start, dir.path, self), { VSO_AGENT_IGNORE: 'LICENCE,A' });
    expect(out).toBe('LICENCE,A,AZP_TOKEN,AZP_TOKEN_FILE');
  });

  it.each(['755', '644'])("becomes an image's own start script, with mode %s", (bits) => {
    using dir = scratch();
    mkdirSync(join(dir.path, 'azp'));
    const start = join(dir.path, 'azp/start.sh');
    writeFileSync(
      start,
      '#!/bin/sh\nprintf "%s|" "$@" "$AZP_URL" "$AZP_TOKEN" "$AZP_POOL" "$AZP_AGENT_NAME" "$VSO_AGENT_IGNORE" "$(pwd)"\n',
    );
    chmodSync(start, Number.parseInt(bits, 8));
    const { out } = runIn(shell, startingImage(start, dir.path, self));
    expect(out).toBe(`--once|https://example.org/a%20b|to'ken|the pool's|box-1|AZP_TOKEN,AZP_TOKEN_FILE|${join(dir.path, 'azp')}|`);
  });
});
