/** Causes that people were told about, or will be: so that a restart neither repeats a message nor loses one. */
import { z } from 'zod';
import { type Database, query } from './db.ts';

const told = z.object({
  key: z.string(),
  kind: z.enum(['device', 'credential', 'service', 'runtime', 'pool', 'disk']),
  subject: z.string(),
  message: z.string(),
  hint: z.string().nullable(),
  stage: z.number(),
  state: z.enum(['announcing', 'announced', 'ending']),
  /** Wall clock, ms since the epoch. */
  since: z.number(),
  at: z.number(),
});

export type ToldCause = Readonly<z.infer<typeof told>>;

const row = z.object({ body: z.string().transform((json) => told.parse(JSON.parse(json))) }).transform(({ body }) => body);

export function noticeTable(db: Database) {
  const all = query(db, row, 'SELECT body FROM notices ORDER BY key');
  const save = db.prepare('INSERT INTO notices (key, body) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET body = excluded.body');
  const remove = db.prepare('DELETE FROM notices WHERE key = ?');
  return {
    /** By key. */
    all: (): ToldCause[] => all.all(),
    save: (cause: ToldCause): void => void save.run(cause.key, JSON.stringify(cause)),
    /** A missing one is not an error. */
    remove: (key: string): void => void remove.run(key),
  };
}
