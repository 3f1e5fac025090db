import { expect, test } from 'vitest';
import { createPublicWords, peopleOf } from './public-words.ts';

const words = () => createPublicWords(['Power Young', 'gpuci']);
const shown = (text: string) =>
  words()
    .text(text)
    .replaceAll(/<hidden-\d+>/g, '…');

test.each([
  'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
  'CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.25 GiB',
  'Segmentation fault (core dumped)',
  'Docker Engine 29.1.2 at /var/run/docker.sock; driver 580.105.08, since 2026-11-29T10:00:00Z',
])('messages of programs stay: %s', (text) => expect(shown(text)).toBe(text));

test.each([
  ['a word that nobody has published', 'logged in with hunter2', 'logged in with …'],
  ['known words, joined', 'open-the-gate not_a_word', '… …'],
  ['a path with one unknown word', 'cannot read /srv/zephyrium/config.yml', 'cannot read …'],
  ['home folders, whosever', 'in /home/default/run', 'in …'],
  ['people of this host, in any spelling', 'young YOUNG power.run gpuci', '… … … …'],
  ['who wrote a commit', 'Author: Young Price  on main\nsigned-off-by: run', 'Author: … …  … …\n… …'],
  ['given names that are words, too', 'thanks to Mark and Max; it will mark', '… to … and …; it will mark'],
  ['addresses', 'to 10.1.2.3 fe80::1 https://error/run a@error.run', 'to … … … …'],
  ['what is said to be a secret', 'password=error token: open', '… token: …'],
  ['numbers of cards and phones', '4111 1111 1111 1111 and 0171-2345678 and 4711471147114711', '… and … and …'],
  ['letters one by one', 'h u n t e r', '… … … … … …'],
  ['tokens between brackets and quotes', '{"k":["ghp_0123456789abcdef"]}', '{"…":["***"]}'],
  ['a token that the job’s own colours cut', 'run hun\u001b[0mter2', 'run …'],
])('%s', (_what, text, left) => expect(shown(text)).toBe(left));

test('names that become known later go, too', () => {
  const known = words();
  known.hide('Run Default');
  expect(known.text('RUN as default-run on error').replaceAll(/<hidden-\d+>/g, '…')).toBe('… as … on error');
});

test('the same piece has the same mark, so that lines can be compared', () => {
  expect(words().text('zephyrium in qwertzuiop\nzephyrium')).toBe('<hidden-1> in <hidden-2>\n<hidden-1>');
});

test('of a text that is too long, the end stays, and no half word', () => {
  expect(words().text(`${'q'.repeat(70_000)}error run`)).toBe(' run');
});

test('a piece that is endless takes no time', () => {
  expect(words().text('pass'.repeat(15_000))).toBe('<hidden-1>');
});

test('people have accounts from 1000 on', () => {
  const people = peopleOf(
    'root:x:0:0:root:/root:/bin/sh\nwill:x:1000:1000:Will Power,,,:/home/will:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n',
  );
  expect(people).toEqual(expect.arrayContaining(['will', 'Will', 'Power']));
  expect(people).not.toContain('root');
});
