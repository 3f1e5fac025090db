import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { expect, onTestFinished, test } from 'vitest';

test('by hand: it says where it is and what to type next, obeys line by line, and ends', async () => {
  const args = [join(import.meta.dirname, 'main.ts'), '--host', '127.0.0.1', '--port', '0', '--pool', 'lab'];
  const child = spawn(process.execPath, args, { stdio: ['pipe', 'pipe', 'inherit'] });
  onTestFinished(() => void child.kill('SIGKILL'));
  const said = text(child.stdout);
  child.stdin.write('queue -- true\ndown\nup\nlog\nquit\n');
  expect(await once(child, 'exit')).toEqual([0, null]);
  const words = await said;
  expect(words).toMatch(/URL {4}http:\/\/127\.0\.0\.1:\d+\/acme\n {2}pool {3}lab\n {2}PAT {4}\w{84}\n/);
  expect(words).toMatch(/bin\/onejob azure - http:\S+ lab /);
  expect(words).toMatch(/Job \d+ failed at once: No agents were found in pool lab.*\nNobody answers any more.*\nAnswers again/s);
});
