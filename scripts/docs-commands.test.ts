/** Every command line that README, the docs and `--help` show can be typed. */
import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Writable } from 'node:stream';
import { type Command, CommanderError } from 'commander';
import { describe, expect, test } from 'vitest';
import { buildProgram } from '../src/cli.ts';
import { commandLines, commandsIn, helpLines } from '../test/support/command-lines.ts';

const root = join(import.meta.dirname, '..');
const pages = ['README.md', 'CONTRIBUTING.md', ...globSync('docs/**/*.md', { cwd: root })];

function program(name?: string): Promise<Command> {
  const silent = new Writable({ write: (_chunk, _encoding, done) => done() });
  return buildProgram({ stdout: silent, stderr: silent }, () => async () => {}, name);
}

/** What may be missing from a command that is only mentioned. */
const lacking = new Set(
  ['missingArgument', 'optionMissingArgument', 'missingMandatoryOptionValue', 'help'].map((code) => `commander.${code}`),
);

/** What the command line says of each of these lines that it does not take. `…` stands for words that are left out. */
async function refused(lines: readonly string[], { inPart }: { readonly inPart: boolean }): Promise<string[]> {
  const found: string[] = [];
  for (const words of lines.flatMap(commandsIn)) {
    try {
      const called = await program(words[0]);
      await called.parseAsync(inPart ? words.filter((word) => word !== '…') : words, { from: 'user' });
    } catch (error) {
      if (!(error instanceof CommanderError)) throw error;
      if (error.exitCode === 0 || (inPart && lacking.has(error.code))) continue;
      found.push(`onejob ${words.join(' ')}: ${error.message}`);
    }
  }
  return found;
}

test('a command that is loaded alone has the same help as among all', async () => {
  const all = (await program()).commands;
  expect(all.length).toBeGreaterThan(30);
  for (const one of all) {
    const alone = (await program(one.name())).commands.find((each) => each.name() === one.name());
    expect(alone?.helpInformation()).toBe(one.helpInformation());
  }
});

describe('command lines can be typed as they are shown', () => {
  test.each(pages)('in %s', async (page) => {
    const { shown, mentioned } = commandLines(readFileSync(join(root, page), 'utf8'));
    expect(await refused(shown, { inPart: false })).toEqual([]);
    expect(await refused(mentioned, { inPart: true })).toEqual([]);
  });

  test('in the help of every command', async () => {
    const lines = helpLines(await program());
    expect(lines.length).toBeGreaterThan(30);
    expect(await refused(lines, { inPart: false })).toEqual([]);
  });

  test('in messages and hints', async () => {
    const quoted = globSync('src/**/*.ts', { cwd: root, exclude: ['**/*.test.ts'] }).flatMap((file) => {
      const text = readFileSync(join(root, file), 'utf8').replaceAll(/\$\{(?:[^{}]|\{[^{}]*\})*\}/g, 'X');
      return [...text.matchAll(/"(onejob [^"\n]+)"/g)].map(([, line = '']) => line);
    });
    expect(quoted.length).toBeGreaterThan(100);
    expect(await refused(quoted, { inPart: true })).toEqual([]);
  });

  test('and what cannot be typed is noticed', async () => {
    const wrong = [
      'npx onejob rnu -- true && onejob plan --nope',
      'A=1 onejob logs  # needs a job',
      'docker pull "$(onejob image choos)"',
    ];
    expect(await refused(wrong, { inPart: false })).toHaveLength(4);
    expect(await refused(['onejob gpus forget …', 'onejob gpus forgit …'], { inPart: true })).toHaveLength(1);
  });
});
