/** What people have used of cards and agents, which a restart does not forget. */
import { z } from 'zod';
import type { Database } from './db.ts';

const spent = z.record(z.string(), z.object({ amount: z.number(), at: z.number() }));
export type SpentByWhom = Readonly<z.infer<typeof spent>>;

export function shareTable(db: Database) {
  const get = db.prepare("SELECT value FROM meta WHERE key = 'shares'");
  const put = db.prepare("INSERT OR REPLACE INTO meta (key, value) VALUES ('shares', ?)");
  let last: { readonly text: string; readonly spent: SpentByWhom } = { text: '{}', spent: {} };
  const all = (): SpentByWhom => {
    const text = String(get.get()?.value ?? '{}');
    if (text !== last.text) last = { text, spent: spent.parse(JSON.parse(text)) };
    return last.spent;
  };
  return {
    all,
    /** Inside a commit. */
    save: (whose: string, now: SpentByWhom[string]): void => void put.run(JSON.stringify({ ...all(), [whose]: now })),
  };
}
