/**
 * The jobs that the server has given to this host and that have not ended, each in a file of the state directory that only its user
 * reads (0600): a job is full of secrets, and the server gives it once. It is written before anything is done about the job, so that
 * the next manager starts it, or ends it with a reason. Once a job has begun, only its own token is kept.
 */
import { mkdirSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { open, rename } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { attempt } from '../../errors.ts';
import { jsonOf } from '../../system/json.ts';
import type { JobKey } from './client.ts';
import { type GivenJob, givenJob } from './wire.ts';

const begun = z.strictObject({ id: z.int().positive(), token: z.string(), reasons: z.array(z.string()) });
const stored = z.union([z.strictObject({ given: givenJob }), z.strictObject({ begun })]);

/** `given`: null once it has begun. `reasons`: why a job may fail, in words that the server knows. */
export interface TakenJob {
  readonly key: JobKey;
  readonly given: GivenJob | null;
  readonly reasons: readonly string[];
}

export type TakenJobs = ReturnType<typeof createTakenJobs>;

/** `dir`: of this service alone; made with the first job. */
export function createTakenJobs(dir: string) {
  const fileOf = (id: number) => join(dir, `${id}.json`);

  async function write(id: number, what: z.input<typeof stored>): Promise<void> {
    mkdirSync(dir, { recursive: true, mode: 0o700 });
    const part = `${fileOf(id)}.new`;
    await using file = await open(part, 'w', 0o600);
    await file.writeFile(JSON.stringify(what));
    await file.datasync();
    await rename(part, fileOf(id));
  }

  return {
    /** It is on disk when this resolves. @throws Error of the file system */
    keep: (given: GivenJob): Promise<void> => write(given.id, { given }),
    /** Forgets all but what ends it. @throws Error of the file system */
    begun: ({ key, reasons }: TakenJob): Promise<void> => write(key.id, { begun: { ...key, reasons: [...reasons] } }),
    forget: (id: number): void => rmSync(fileOf(id), { force: true }),
    /** Those of earlier managers. A broken file is left alone: its job is unknown. */
    all(): TakenJob[] {
      const names = attempt(() => readdirSync(dir)) ?? [];
      // Nothing was done yet about a job whose file is not whole.
      for (const name of names) if (name.endsWith('.new')) rmSync(join(dir, name), { force: true });
      return names.flatMap((name) => {
        if (!/^\d+\.json$/.test(name)) return [];
        const found = stored.safeParse(jsonOf(attempt(() => readFileSync(join(dir, name), 'utf8')) ?? '')).data;
        if (found === undefined) return [];
        return 'given' in found ? [takenOf(found.given)] : [{ key: keyOf(found.begun), given: null, reasons: found.begun.reasons }];
      });
    },
  };
}

export function takenOf(given: GivenJob): TakenJob {
  return { key: keyOf(given), given, reasons: given.features.failure_reasons };
}

const keyOf = ({ id, token }: JobKey): JobKey => ({ id, token });
