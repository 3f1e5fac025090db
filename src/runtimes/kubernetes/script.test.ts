/** The first process of an agent's container, as it is in one: process 1, with which all that it started ends. */
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { type Child, startChild } from '../../../test/support/child.ts';
import { lacks } from '../../../test/support/require.ts';
import { scratch } from '../../../test/support/scratch.ts';
import { answerIn, frame } from '../gate.ts';
import { endIn, exitUnfit, supervisorScript, unfitIn } from './script.ts';

const agent = 'a1b2c3';
const shells = [['/bin/dash'], ['/bin/bash', '--posix'], ['/bin/busybox', 'sh']].filter(([path = '']) => existsSync(path));
/** Standard output on a line that was not the supervisor's, and the end that it tells. */
const exitCode = (code: number) => new RegExp(`\u001eonejob exited ${agent} ${code}\n`);

describe.skipIf(lacks('root')).each(shells)('the first process in %s %s', (...shell) => {
  /** `program`: what `nvidia-smi` does there; null: it is not installed. */
  function start(gpus = 0, program: string | null = null, look?: string): Child {
    const { path } = scratch();
    if (program !== null) writeFileSync(join(path, 'nvidia-smi'), `#!/bin/sh\n${program}\n`, { mode: 0o755 });
    const script = supervisorScript({ agent, gpus, look });
    const words = ['--pid', '--fork', '--mount-proc', '--kill-child', ...shell, '-c', script, 'onejob'];
    return startChild('unshare', words, { cwd: '/', env: { ...process.env, PATH: `${path}:${process.env.PATH}` } });
  }
  function released(script: string): Child {
    const child = start();
    child.typeMore(Buffer.from(frame(agent, script)).toString('latin1'));
    return child;
  }
  /** To the first process: what the node sends, or what onejob does. */
  const send = ({ pid }: Child, signal: 'SIGTERM' | 'SIGUSR1'): void => {
    process.kill(Number(readFileSync(`/proc/${pid}/task/${pid}/children`, 'latin1').trim()), signal);
  };
  const term = (child: Child): void => send(child, 'SIGTERM');

  test.each([0, 7, 255])('tells exit code %i, and waits until its files were fetched', async (code) => {
    const child = released(`echo words; echo more >&2; printf last; exit ${code}`);
    await child.says(exitCode(code));
    expect(child.stdout).toContain(`released ${agent}\nwords\nmore\nlast\u001e`);
    term(child);
    expect((await child.ended).code).toBe(code);
    expect(endIn(agent, Buffer.from(child.stdout))?.exit).toEqual({ kind: 'code', code });
  });

  test.each(['SIGTERM', 'SIGUSR1'] as const)('passes %s on to the job as TERM, which has its time', async (signal) => {
    const child = released('trap "sleep 0.2; echo last words; exit 3" TERM; echo up; while :; do sleep 0.02; done');
    await child.says(/up\n/);
    send(child, signal);
    await child.says(exitCode(3));
    expect(child.stdout).toContain('last words\n');
    // Its files may still be fetched.
    send(child, 'SIGUSR1');
    expect(child.running).toBe(true);
    await child.kill();
  });

  test('tells no code of a job that the node has ended, and stays no longer', async () => {
    const child = released('echo up; while :; do sleep 0.02; done');
    await child.says(/up\n/);
    term(child);
    const { code, stdout } = await child.ended;
    expect(code).toBe(143);
    expect(endIn(agent, Buffer.from(stdout))).toBe(null);
  });

  test('tells the code of a job that onejob has ended', async () => {
    const child = released('echo up; while :; do sleep 0.02; done');
    await child.says(/up\n/);
    send(child, 'SIGUSR1');
    await child.says(exitCode(143));
    // Some shells say so when a process of theirs was killed.
    expect(child.stdout).not.toMatch(/Terminated/);
    await child.kill();
  });

  test('ends what the job has left, before it tells the end', async () => {
    const child = released('(trap "" TERM HUP; while :; do echo more; sleep 0.01; done) & sleep 0.05; exit 0');
    await child.says(exitCode(0));
    term(child);
    const { stdout } = await child.ended;
    expect(endIn(agent, Buffer.from(stdout))?.exit).toEqual({ kind: 'code', code: 0 });
  });

  test('a gate that gets no script ends when it is told to', async () => {
    const child = start();
    await child.says(new RegExp(`onejob ready ${agent}\n`));
    send(child, 'SIGUSR1');
    await child.says(exitCode(143));
    await child.kill();
  });

  test('says what was asked of it before its gate, and nothing else', async () => {
    const child = start(0, null, 'echo root=/opt/agent; echo a warning >&2; cat; exit 3');
    await child.says(new RegExp(`onejob ready ${agent}\n`));
    // The log of a container has both.
    expect(child.stderr).toBe('');
    expect(answerIn(agent, child.stdout.split('\u001e')[0] ?? '')).toEqual({ text: 'root=/opt/agent\n', code: '3' });
    await child.kill();
  });

  const fit = 'case $* in -L) echo "GPU 0: H200 (UUID: GPU-1)" ;; *memory.used*) echo 3 ;; esac';
  test('begins with as many GPUs as were asked for', async () => {
    const child = start(1, fit);
    await child.says(new RegExp(`onejob ready ${agent}\n`));
    await child.kill();
  });

  test.each([
    ['one of two', 2, fit, 'it was asked for 2 GPUs, and Kubernetes granted 1'],
    ['a tool that fails', 1, 'echo "no driver"; exit 9', 'nvidia-smi fails: no driver'],
    ['memory in use', 1, fit.replace('echo 3', 'echo 9000'), '9000 MiB of the memory of a GPU are in use'],
  ])('does not begin with %s', async (_, gpus, program, why) => {
    const child = start(gpus, program);
    expect((await child.ended).code).toBe(exitUnfit);
    expect(unfitIn(agent, child.stdout)).toBe(why);
  });
});
