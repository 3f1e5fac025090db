/**
 * How a sandbox in an engine of its own has ended: a file of this host next to its output, which no job can write. It is on disk before the
 * container of the engine is ended, so that a manager that comes afterwards, also after a power cut, tells the same end.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { attempt } from '../../base/errors.ts';
import { exit as exitSchema } from '../../contract/job.ts';
import type { Exit } from '../../core/slot.ts';
import { writeWhole } from '../../system/files.ts';
import { jsonOf } from '../../system/json.ts';
import { inEngine } from './engine-program.ts';

/** @throws Error of the file system, and then it is not certain that the file is there */
export function keepExit(folder: string, exit: Exit): void {
  writeWhole(join(folder, inEngine.exit), JSON.stringify(exit), { over: true, mode: 0o600, alone: true });
}

/** null if nothing is known. */
export function keptExit(folder: string): Exit | null {
  const text = attempt(() => readFileSync(join(folder, inEngine.exit), 'utf8'));
  return exitSchema.safeParse(jsonOf(text ?? '')).data ?? null;
}
