/** The image of each pool that has proved itself last: what its slots keep while one of them tries another one. */
import { z } from 'zod';
import { type Database, query } from './db.ts';

const mount = z.object({
  host: z.string(),
  container: z.string(),
  readOnly: z.boolean(),
  variable: z.string().nullable(),
  cache: z.object({ name: z.string().nullable() }).nullable(),
});

const proved = z.object({
  image: z.string().nullable(),
  id: z.string().nullable(),
  equipment: z.array(mount),
  driver: z.string().nullable(),
});

export type ProvedImage = Readonly<z.infer<typeof proved>>;

const row = z
  .object({ pool: z.string(), body: z.string().transform((json) => proved.parse(JSON.parse(json))) })
  .transform(({ pool, body }) => [pool, body] as const);

export function provedImageTable(db: Database) {
  const one = query(db, row, 'SELECT pool, body FROM proved_images WHERE pool = ?');
  const save = db.prepare(
    'INSERT INTO proved_images (pool, body) VALUES (?, ?) ON CONFLICT (pool) DO UPDATE SET body = excluded.body',
  );
  const names = query(db, z.object({ pool: z.string() }), 'SELECT pool FROM proved_images');
  const remove = db.prepare('DELETE FROM proved_images WHERE pool = ?');
  return {
    of: (pool: string): ProvedImage | null => one.get(pool)?.[1] ?? null,
    save: (pool: string, image: ProvedImage): void => void save.run(pool, JSON.stringify(image)),
    /** Removes those of all other pools. */
    keepOnly(pools: readonly string[]): void {
      for (const { pool } of names.all()) if (!pools.includes(pool)) remove.run(pool);
    },
  };
}
