import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { expect, onTestFinished, test } from 'vitest';

test('by hand: it says where it is and what to type next, obeys line by line, and ends', async () => {
  const args = [join(import.meta.dirname, 'main.ts'), '--host', '127.0.0.1', '--port', '0'];
  const child = spawn(process.execPath, args, { stdio: ['pipe', 'pipe', 'inherit'] });
  onTestFinished(() => void child.kill('SIGKILL'));
  const said = text(child.stdout);
  child.stdin.write('queue -- true\ndown\nup\njobs\nquit\n');
  expect(await once(child, 'exit')).toEqual([0, null]);
  const words = await said;
  expect(words).toMatch(/endpoint {2}http:\/\/127\.0\.0\.1:\d+\/v3\n {2}token {5}bkct_[\w-]{40}\n/);
  expect(words).toMatch(/type: buildkite, endpoint: "http:/);
  expect(words).toMatch(/Job \w{8} is queued\.\nNobody answers any more.*\nAnswers again on .*\n\w{8} {2}scheduled/);
});
