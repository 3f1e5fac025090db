import { execFileSync } from 'node:child_process';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { extract, pack } from 'tar-stream';
import { expect, test } from 'vitest';
import { withOwner } from './workspace.ts';

const piecewise = (bytes: Buffer, size: number) =>
  Readable.from(Array.from({ length: Math.ceil(bytes.length / size) }, (_, i) => bytes.subarray(i * size, (i + 1) * size)));

test('every entry gets the owner, wherever the stream is cut; everything else stays', async () => {
  const tar = pack();
  tar.entry({ name: `${'d'.repeat(150)}/ü`, uid: 5, gid: 6, mode: 0o640 }, 'body');
  tar.entry({ name: 'link', type: 'symlink', linkname: 'elsewhere' });
  tar.entry({ name: 'paxed', uid: 5, gid: 6, pax: { uid: '77', gid: '78', comment: 'kept' } as object }, 'x'.repeat(2000));
  tar.entry({ name: 'empty' }, '');
  tar.finalize();
  const whole = await buffer(tar);
  for (const size of [1, 7, 512, 513, 100_000]) {
    const out = await buffer(piecewise(whole, size).pipe(withOwner({ uid: 3_000_000, gid: 1000 })));
    expect(out.length).toBe(whole.length);
    const seen: unknown[] = [];
    for await (const entry of Readable.from([out]).pipe(extract())) {
      const { name, uid, gid, mode, pax } = entry.header;
      seen.push([name, uid, gid, mode, (pax as Record<string, string> | null | undefined)?.comment, (await buffer(entry)).length]);
    }
    expect(seen).toEqual([
      [`${'d'.repeat(150)}/ü`, 3_000_000, 1000, 0o640, undefined, 4],
      ['link', 3_000_000, 1000, 0o644, undefined, 0],
      ['paxed', 3_000_000, 1000, 0o644, 'kept', 2000],
      ['empty', 3_000_000, 1000, 0o644, undefined, 0],
    ]);
  }
});

test('a tar by GNU tar keeps names that are not UTF-8', async () => {
  const script = 'd=$(mktemp -d); cd "$d"; printf x >"$(printf "caf\\351")"; tar --format=gnu -cf - .; rm -r "$d"';
  const whole = execFileSync('sh', ['-c', script]);
  const out = await buffer(piecewise(whole, 333).pipe(withOwner({ uid: 1000, gid: 1000 })));
  const listed = execFileSync('tar', ['-tvf', '-', '--numeric-owner', '--quoting-style=escape'], { input: out }).toString();
  expect(listed).toMatch(/1000\/1000 .*caf\\351/);
});
