/** Folders that a power cut of this host has damaged, while Slurm and its jobs continued: a `squeue` of the test says which. */
import { chmodSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { scratch } from '../../../test/support/scratch.ts';
import { systemClock } from '../../system/system-clock.ts';
import { createSlurmRuntime } from './slurm.ts';

test('a sandbox whose folder no longer says what it is runs as long as its job, is lost then, and can be removed', async () => {
  using here = scratch();
  const [bin, folder] = [join(here.path, 'bin'), join(here.path, 'shared')];
  for (const agent of ['runs', 'over']) {
    mkdirSync(join(folder, 'me/agents', agent), { recursive: true });
    writeFileSync(join(folder, 'me/agents', agent, 'spec.json'), '');
  }
  // One that was being made.
  mkdirSync(join(folder, 'me/agents/.new-cut/log'), { recursive: true });
  mkdirSync(join(folder, 'me/marks'));
  for (const mark of ['cut', 'over']) writeFileSync(join(folder, `me/marks/${mark}.exit`), '-------\n');
  mkdirSync(bin);
  writeFileSync(join(bin, 'squeue'), "#!/bin/sh\necho '7|RUNNING|None|n1|oj-runs|onejob:me'\n");
  chmodSync(join(bin, 'squeue'), 0o755);
  const config = {
    name: 'slurm',
    type: 'slurm',
    folder,
    nodeFolder: '/tmp',
    path: bin,
    conf: null,
    address: null,
    poll: 2_000,
  } as const;
  const runtime = createSlurmRuntime({ config, owner: 'me', clock: systemClock, stateDir: here.path });
  const { signal } = new AbortController();
  const of = { pool: '', slot: '' };
  const reason = 'its folder was damaged when the host went down';
  expect((await runtime.list(signal)).sort((a, b) => a.agent.localeCompare(b.agent))).toEqual([
    { agent: 'over', ...of, state: { kind: 'exited', exit: { kind: 'lost', reason } } },
    { agent: 'runs', ...of, state: { kind: 'running' } },
  ]);
  expect(readdirSync(join(folder, 'me/agents')).sort()).toEqual(['over', 'runs']);
  expect(readdirSync(join(folder, 'me/marks'))).toEqual(['over.exit']);
  await runtime.remove('over');
  expect((await runtime.list(signal)).map(({ agent }) => agent)).toEqual(['runs']);
  runtime.close?.();
});
