import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, describe, expect, it } from 'vitest';
import { anyCharacter } from '../../../test/support/any-character.ts';
import { jobScript } from './request.ts';

const workspace = mkdtempSync(join(tmpdir(), "onejob it's a test "));
afterAll(() => rmSync(workspace, { recursive: true }));

const shells: (readonly string[])[] = [['dash'], ['bash', '--posix'], ['bash'], ['busybox', 'sh']].filter(
  ([name = '']) => spawnSync(name, ['-c', ':']).error === undefined,
);

describe.each(shells.map((words) => ({ name: words.join(' '), words })))('on $name', ({ words: [shell = 'sh', ...args] }) => {
  const run = (command: string[], env: Record<string, string> = {}) =>
    spawnSync(shell, [...args, '-c', jobScript(workspace, { env, command })], {
      env: { PATH: process.env.PATH },
      // bash reads ~/.bashrc when its input is a socket, as Node's pipes are.
      stdio: ['ignore', 'pipe', 'pipe'],
    });

  it('runs the command in the workspace and passes its exit code on', () => {
    expect(run(['pwd']).stdout.toString()).toBe(`${workspace}\n`);
    expect(run(['sh', '-c', 'exit 9']).status).toBe(9);
  });

  it('passes 127 on for a command that does not exist, and 126 for one that cannot be run', () => {
    expect(run(['no-such-command-here']).status).toBe(127);
    expect(run([workspace]).status).toBe(126);
  });

  it('carries any argument and any variable as it is', () => {
    const text = fc.oneof(
      fc.string({ unit: anyCharacter }),
      fc
        .array(fc.constantFrom("'", '"', '\\', '$', '`', '\n', '!', '*', ' ', '\t', '\r', 'é', '💥', '\u001b'))
        .map((all) => all.join('')),
    );
    const carried = text.map((one) => one.replaceAll('\0', '').toWellFormed());
    fc.assert(
      fc.property(carried, carried, (argument, value) => {
        const printed = run(
          [process.execPath, '-e', 'process.stdout.write(JSON.stringify([process.argv[1], process.env.V]))', '--', argument],
          {
            V: value,
          },
        );
        expect(JSON.parse(printed.stdout.toString())).toEqual([argument, value]);
      }),
      { numRuns: 12 },
    );
  });

  it('becomes the command, so that TERM reaches it', async () => {
    const command = ['sh', '-c', "trap 'echo last words; exit 3' TERM; echo here; while :; do sleep 0.05; done"];
    const child: ChildProcess = spawn(shell, [...args, '-c', jobScript(workspace, { env: {}, command })]);
    let said = '';
    child.stdout?.on('data', (bytes: Buffer) => {
      said += bytes;
      if (said === 'here\n') child.kill('SIGTERM');
    });
    const [code] = await once(child, 'close');
    expect([code, said]).toEqual([3, 'here\nlast words\n']);
  });
});

it('refuses what a shell cannot carry', () => {
  const script =
    (env: Record<string, string>, command = ['true']) =>
    () =>
      jobScript(workspace, { env, command });
  expect(script({ 'A-B': 'x' })).toThrow(/"A-B": its name must consist of letters/);
  expect(script({ '': 'x' })).toThrow(/E_JOB|Cannot set/);
  expect(script({ UID: '0' })).toThrow(/shells do not allow setting it/);
  expect(script({ A: 'x\0y' })).toThrow(/NUL/);
  expect(script({}, ['a\0'])).toThrow(/NUL/);
});
