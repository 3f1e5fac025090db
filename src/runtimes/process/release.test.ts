import fs, { mkdirSync, renameSync, writeFileSync } from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';
import { join } from 'node:path';
import { expect, it, vi } from 'vitest';
import { handClock } from '../../../test/kit/core.ts';
import { scratch } from '../../../test/support/scratch.ts';
import { placedFile } from './prepare.ts';
import { releaseGate, verifyFolders } from './release.ts';

it('a sandbox of which nothing shows what is mounted is not released', async () => {
  using dir = scratch();
  const clock = handClock();
  writeFileSync(join(dir.path, placedFile), JSON.stringify([{ host: '/srv', container: '/data' }]));
  const numbers = Array.from({ length: 20 }, () => '7').join(' ');
  writeFileSync(join(dir.path, 'job'), `7 (bwrap) S 1 ${numbers}\n`);
  writeFileSync(join(dir.path, 'status'), '{ "child-pid": 2147483646 }\n');
  let isOver = false;
  const verified = verifyFolders({ clock, agent: 'agent-1', path: dir.path, hasEnded: () => false }, new AbortController().signal);
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

it('a gate that was released is known as such while the first file of its log goes', async () => {
  using dir = scratch();
  const first = join(dir.path, 'log/stdout');
  mkdirSync(join(dir.path, 'log'));
  writeFileSync(first, 'output of a job\n');
  const numbers = Array.from({ length: 20 }, () => '7').join(' ');
  writeFileSync(join(dir.path, 'job'), `7 (sh) S 1 ${numbers}\n`);
  const open = fs.openSync;
  const spy = vi.spyOn(fs, 'openSync').mockImplementation((path, ...how) => {
    if (path === first) renameSync(first, `${first}.16384`);
    return open(path, ...how);
  });
  syncBuiltinESMExports();
  try {
    const sandbox = { clock: handClock(), agent: 'agent-1', path: dir.path, hasEnded: () => false };
    await releaseGate(sandbox, new Uint8Array(), new AbortController().signal);
  } finally {
    spy.mockRestore();
    syncBuiltinESMExports();
  }
});
