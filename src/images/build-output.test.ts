/** What is made of an Engine's words while it builds: Docker's and Podman's. */
import { expect, test } from 'vitest';
import { readBuild } from './engine.ts';

function read(lines: readonly object[]) {
  const steps: string[] = [];
  const output = readBuild((step) => steps.push(step));
  for (const line of lines) output.line(JSON.stringify(line));
  return { steps, output };
}

const docker = [
  { stream: 'Step 1/4 : ARG BASE' },
  { stream: '\n' },
  { stream: 'Step 2/4 : FROM ${BASE}' },
  { stream: '\n' },
  { stream: ' ---\u003e 758bc54b5317\n' },
  { stream: `Step 3/4 : RUN : installing packages; set -eu; ${'x'.repeat(4000)}` },
  { stream: '\n' },
  { stream: ' ---\u003e Running in 884c0d5093ed\n' },
  { stream: 'Get:1 http://deb.debian.org\n\u001b[91mW: ' },
  { stream: 'old\u001b[0m\nProgress 1%\rProgress 2%\n' },
  { stream: 'Removing intermediate container 884c0d5093ed\n' },
  { stream: 'Step 4/4 : RUN set -eu;   make   all' },
  { stream: '\n' },
];

test('steps that take time are reported as they begin, by their title or their command', () => {
  expect(read(docker).steps).toEqual(['step 2/4 FROM ${BASE}', 'step 3/4 installing packages', 'step 4/4 make all']);
  expect(read([{ stream: 'STEP 2/3: RUN make\n' }]).steps).toEqual(['step 2/3 make']);
});

test('what came out is kept as lines without colours, the last 15 of them', () => {
  expect(read(docker).output.tail()).toEqual(['Get:1 http://deb.debian.org', 'W: old', 'Progress 1%', 'Progress 2%']);
  const many = read(Array.from({ length: 40 }, (_, at) => ({ stream: `line ${at}\n` }))).output.tail();
  expect([many.length, many[0], many.at(-1)]).toEqual([15, 'line 25', 'line 39']);
  expect(read([{ stream: 'no end' }]).output.tail()).toEqual(['no end']);
  expect(read([{ stream: `${'y'.repeat(1000)}\n` }]).output.tail()[0]).toHaveLength(301);
});

test('the end is an id or a reason', () => {
  const id = `sha256:${'a'.repeat(64)}`;
  expect(read([...docker, { aux: { ID: id } }, { stream: 'Successfully built aaaaaaaaaaaa\n' }]).output.id).toBe(id);
  // Podman's last words.
  expect(read([{ stream: 'COMMIT x\n' }, { stream: `${'b'.repeat(64)}\n` }]).output.id).toBe('b'.repeat(64));
  const { output } = read([...docker, { errorDetail: { code: 7, message: ' The command failed \n' } }]);
  expect([output.id, output.error, output.step]).toEqual([null, 'The command failed', 'step 4/4 make all']);
});

test('what is not an answer of an Engine is refused', () => {
  expect(() => readBuild(() => {}).line('<html>')).toThrow(SyntaxError);
  expect(() => readBuild(() => {}).line('{"stream": 7}')).toThrow(/stream/);
});
