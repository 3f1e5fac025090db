/** The scripts of probe pods, with each tool alone, in a network of their own. */
import { execFileSync } from 'node:child_process';
import { existsSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { startChild } from '../../../test/support/child.ts';
import { lacks } from '../../../test/support/require.ts';
import { scratch } from '../../../test/support/scratch.ts';
import { probeScript } from './probe-script.ts';

/** Of the system: others may be scripts. */
const tools = [
  ['perl', '/usr/bin/perl'],
  ['python3', '/usr/bin/python3'],
  ['nc', '/bin/busybox'],
].filter(([, path = '']) => existsSync(path));

/** What the script prints, where `$LISTEN` and `$CONNECT` are those of a probe and only these programs exist. */
async function said(script: string, programs: readonly (readonly string[])[]): Promise<string> {
  using folder = scratch();
  const found = (name: string): string => execFileSync('sh', ['-c', `command -v ${name}`], { encoding: 'utf8' }).trim();
  for (const [name = '', path = ''] of [...programs, ...['ip', 'sleep'].map((one) => [one, found(one)])])
    symlinkSync(path, join(folder.path, name));
  const env = { PATH: folder.path, LISTEN: probeScript('listen'), CONNECT: probeScript('connect') };
  const words = ['--net', '--pid', '--fork', '--kill-child', '/bin/sh', '-c', `ip link set lo up\n${script}`];
  const { stdout } = await startChild('/usr/bin/unshare', words, { cwd: '/', env }).ended;
  return stdout;
}

describe.skipIf(lacks('root', 'busybox'))('a probe', () => {
  test.each(tools)('listens with %s, and tells whether a connection is there', async (...tool) => {
    const script = `
      connects() { /bin/sh -c "$CONNECT" sh "$1"; }
      connects 127.0.0.1; echo "first: $?"
      /bin/sh -c "$LISTEN" &
      for address in 127.0.0.1 ::1 127.0.0.1; do until connects "$address"; do sleep 0.1; done; echo "$address"; done`;
    const expected = ['first: 1', '127.0.0.1', '::1', '127.0.0.1'];
    expect((await said(script, [tool])).trim().split('\n')).toEqual(expected);
  });

  test('says that it has no tool', async () => {
    expect(await said('/bin/sh -c "$LISTEN"; echo $?; /bin/sh -c "$CONNECT" sh 127.0.0.1; echo $?', [])).toBe('93\n93\n');
  });
});
