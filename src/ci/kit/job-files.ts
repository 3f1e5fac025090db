/**
 * Jobs that a service has given to this host, and gives only once, each in a file of the state directory that only its user reads
 * (0600), because a job is full of secrets. A job is written before anything is done about it, so that the next manager starts it, or
 * ends it with a reason.
 */
import { readdirSync, readFileSync, rmSync } from 'node:fs';
import { open, rename } from 'node:fs/promises';
import { join } from 'node:path';
import type { z } from 'zod';
import { attempt } from '../../base/errors.ts';
import { makeFolder, syncFolder } from '../../system/files.ts';
import { jsonOf } from '../../system/json.ts';

export interface JobFiles<T> {
  /** It is on disk when this resolves, in the place of what was there. @throws Error of the file system */
  keep(id: string, what: T): Promise<void>;
  forget(id: string): void;
  /** Those of earlier managers. A damaged file is left alone. */
  all(): T[];
}

/** `dir`: of one service alone; made with the first job. Ids are letters, digits and `-`. */
export function createJobFiles<T>(dir: string, schema: z.ZodType<T>): JobFiles<T> {
  const fileOf = (id: string) => join(dir, `${id}.json`);
  return {
    async keep(id, what) {
      makeFolder(dir);
      const part = `${fileOf(id)}.new`;
      await using file = await open(part, 'w', 0o600);
      await file.writeFile(JSON.stringify(what));
      await file.datasync();
      await rename(part, fileOf(id));
      syncFolder(dir);
    },
    forget: (id) => rmSync(fileOf(id), { force: true }),
    all() {
      const names = attempt(() => readdirSync(dir)) ?? [];
      // Nothing was done yet about a job whose file is not complete.
      for (const name of names) if (name.endsWith('.new')) rmSync(join(dir, name), { force: true });
      const texts = names
        .filter((name) => name.endsWith('.json'))
        .map((name) => attempt(() => readFileSync(join(dir, name), 'utf8')));
      return texts.flatMap((text) => schema.safeParse(jsonOf(text ?? '')).data ?? []);
    },
  };
}
