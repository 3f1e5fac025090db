import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { expect, it } from 'vitest';
import { running } from './holding.ts';

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
