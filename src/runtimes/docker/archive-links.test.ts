import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { extract, pack } from 'tar-stream';
import { expect, test } from 'vitest';
import { Refusal, translate } from '../engine/failures.ts';
import { withOwner } from './workspace.ts';

const long = 'l'.repeat(120);

test.each([
  // What stays in the workspace, and what is absolute already, goes through as it is.
  ['link', 'file', 'file'],
  ['a/b/link', '../../file', '../../file'],
  ['link', '/etc/passwd', '/etc/passwd'],
  ['link', './a/../b', './a/../b'],
  // The Engine refuses a whole archive for one relative link out of its folder.
  ['link', '..', '/'],
  ['link', '../sibling', '/sibling'],
  ['a/link', '../../../../etc/ü', '/etc/ü'],
  ['a/link', '../x/../../../y', '/y'],
  [`${long}/${long}/link`, '../../../sibling', '/sibling'],
  ['link', `../${long}`, `/${long}`],
  [`${long}/link`, `../../${long}`, `/${long}`],
  [`${long}\n/ü/link`, '../x', '../x'],
  ['link', `../${long}\nü`, `/${long}\nü`],
  // Another folder whose name only begins like the workspace's is another folder.
  ['link', '../workspace2/x', '/workspace2/x'],
])('link %s to %s', async (name, linkname, expected) => {
  const tar = pack();
  tar.entry({ name: 'before' }, 'body');
  tar.entry({ name, type: 'symlink', linkname });
  tar.entry({ name: 'after' }, 'body');
  tar.finalize();
  const whole = await buffer(tar);
  for (const size of [100, 512, 100_000]) {
    const parts = Array.from({ length: Math.ceil(whole.length / size) }, (_, i) => whole.subarray(i * size, (i + 1) * size));
    const out = await buffer(Readable.from(parts).pipe(withOwner({ uid: 1000, gid: 1000 })));
    expect(out.length).toBe(whole.length);
    const seen: unknown[] = [];
    for await (const entry of Readable.from([out]).pipe(extract())) {
      const { name, type, linkname } = entry.header;
      seen.push([name, type === 'symlink' ? linkname?.replace(/^\/+/, '/') : type, (await buffer(entry)).length]);
    }
    expect(seen).toEqual([
      ['before', 'file', 4],
      [name, expected, 0],
      ['after', 'file', 4],
    ]);
  }
});

test('an archive that the Engine cannot unpack is not retried, unless the disk was full', () => {
  const answer = (message: string) =>
    translate(new Refusal(500, JSON.stringify({ message })), 'put files into container x', {
      kind: 'unix',
      path: '/x.sock',
      from: 'the default',
    });
  const refused = answer('Error processing tar file(exit status 1): invalid symlink "/workspace/x" -> ".."');
  expect(refused).toMatchObject({ code: 'E_FILES', retry: false, message: expect.stringContaining('invalid symlink') });
  const full = answer('Error processing tar file(exit status 1): write /x: no space left on device');
  expect(full).toMatchObject({ code: 'E_DISK_FULL', retry: true });
});
