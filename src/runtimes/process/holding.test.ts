import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { expect, it } from 'vitest';
import { scratch } from '../../../test/support/scratch.ts';
import { namedOutput, running } from './holding.ts';

it('a shell whose program left something that holds its output ends when it must', async () => {
  const child = spawn('/bin/sh', ['-c', 'sleep 1000 & echo $!; exit 3'], { stdio: ['pipe', 'pipe', 'pipe', 'pipe'] });
  const stop = new AbortController();
  let left = 0;
  try {
    const shell = running(child, false, stop.signal, async () => {});
    for await (const { bytes } of shell.output) {
      left = Number(Buffer.from(bytes).toString());
      break;
    }
    if (child.exitCode === null) await once(child, 'exit');
    stop.abort(new Error('the hold has ended'));
    await expect(shell.ended).rejects.toThrow('the hold has ended');
  } finally {
    if (left > 1) process.kill(left, 'SIGKILL');
  }
});

it('a shell that is killed between any two steps leaves no reader of its output', async () => {
  const lines = namedOutput(['out', 'err'], null);
  for (const [at] of lines.entries()) {
    using dir = scratch();
    const script = [...lines.slice(0, at + 1), 'kill -KILL $$'].join('\n');
    const child = spawn('/bin/sh', ['-c', script], { cwd: dir.path, stdio: ['pipe', 'pipe', 'pipe', 'pipe'] });
    child.stdout.resume();
    child.stderr.resume();
    // The readers hold its pipes.
    await once(child, 'close', { signal: AbortSignal.timeout(10_000) }).catch(() => expect.fail(`after ${lines[at]}`));
  }
});

it('what a shell writes goes through, whichever name its output has', async () => {
  using dir = scratch();
  const script = [...namedOutput(['out', 'err'], null), 'echo a; echo b >/dev/stdout; echo c >&2; echo d >/dev/stderr; ls'];
  const child = spawn('/bin/sh', ['-c', script.join('\n')], { cwd: dir.path, stdio: ['pipe', 'pipe', 'pipe', 'pipe'] });
  const said = { stdout: '', stderr: '' };
  for (const name of ['stdout', 'stderr'] as const) {
    child[name].on('data', (data: Buffer) => {
      said[name] += data;
    });
  }
  await once(child, 'close');
  expect(said).toEqual({ stdout: 'a\nb\n', stderr: 'c\nd\n' });
});
