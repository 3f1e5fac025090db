/**
 * Runners that were registered on this host for one job each, as their files have them: with a key, and from when it was given a task
 * with that, whole until it begins.
 */
import { z } from 'zod';
import { createJobFiles } from '../kit/job-files.ts';

const stored = z.strictObject({
  /** Id of the runner at the server. */
  id: z.int().positive(),
  key: z.strictObject({ uuid: z.string(), token: z.string() }),
  pool: z.string(),
  /** Whose runner it is, as a part of the path. */
  place: z.string(),
  /** null: none is known. `answer`: as the server gave it (base64); null: it has begun. */
  task: z.strictObject({ id: z.int().positive(), answer: z.string().nullable() }).nullable(),
});
export type Enlisted = Readonly<z.infer<typeof stored>>;
export type Task = NonNullable<Enlisted['task']>;
/** A runner with a task. */
export type Taken = Enlisted & { readonly task: Task };

export type TakenTasks = ReturnType<typeof createTakenTasks>;

/** `dir`: of this service alone. */
export function createTakenTasks(dir: string) {
  const files = createJobFiles(dir, stored);
  return {
    keep: (one: Enlisted) => files.keep(String(one.id), one),
    forget: ({ id }: Enlisted): void => files.forget(String(id)),
    all: (): Enlisted[] => files.all(),
  };
}
