/** `onejob cloud check-provider --create`, which waits as a person with a real cloud does: for the program for Incus, in real time. */
import { spawnSync } from 'node:child_process';
import { expect, test } from 'vitest';
import { runCli } from '../../src/cli.ts';
import { testContext } from '../support/cli-context.ts';
import { incusLab, incusProvider, instancesOf } from '../support/incus-lab.ts';
import { scratch } from '../support/scratch.ts';

const hasPython = spawnSync('python3', ['--version']).status === 0;

test.skipIf(!hasPython)('it makes a machine, inspects it, and removes it', { timeout: 400_000 }, async () => {
  using folder = scratch();
  const { home, path } = incusLab(folder.path);
  const args = [
    'cloud',
    'check-provider',
    incusProvider,
    '--manager-only',
    '--option',
    'remote=lab',
    '--create',
    '--type',
    'gpu-large',
  ];
  const typed = testContext([...args, '--json'], home, { variables: { PATH: path, HOME: home } });
  expect(await runCli(typed.context), typed.stdout() + typed.stderr()).toBe(0);
  const steps: { step: string; result: string }[] = typed
    .stdout()
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
  expect(steps.filter(({ result }) => result === 'failed')).toEqual([]);
  expect(steps.map(({ step }) => step)).toEqual(
    expect.arrayContaining(['create', 'the same create call again', 'gone', 'clean up']),
  );
  expect(typed.stderr()).toContain('now it makes a machine of type gpu-large');
  expect(instancesOf(home)).toEqual([]);
});
