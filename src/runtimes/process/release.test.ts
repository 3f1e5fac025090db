import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { handClock } from '../../../test/kit/core.ts';
import { scratch } from '../../../test/support/scratch.ts';
import { placedFile } from './prepare.ts';
import { verifyFolders } from './release.ts';

it('a sandbox of which nothing shows what is mounted is not released', async () => {
  using dir = scratch();
  const clock = handClock();
  writeFileSync(join(dir.path, placedFile), JSON.stringify([{ host: '/srv', container: '/data' }]));
  const numbers = Array.from({ length: 20 }, () => '7').join(' ');
  writeFileSync(join(dir.path, 'job'), `7 (bwrap) S 1 ${numbers}\n`);
  writeFileSync(join(dir.path, 'status'), '{ "child-pid": 2147483646 }\n');
  let isOver = false;
  const verified = verifyFolders(clock, dir.path, 'agent-1', () => false, new AbortController().signal);
  const result = verified.finally(() => {
    isOver = true;
  });
  result.catch(() => {});
  for (let ms = 0; !isOver && ms < 60_000; ms += 100) {
    clock.advance(100);
    await new Promise<void>((resolve) => setImmediate(resolve));
  }
  await expect(result).rejects.toMatchObject({ code: 'E_GATE_ENDED', message: expect.stringContaining('what is mounted') });
});
