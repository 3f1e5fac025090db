/** Machines in clouds: the ledger. A machine is written before its create call, and stays as its receipt after it is gone. */
import { z } from 'zod';
import { query, type Reader, understand } from './db.ts';
import { type Machine, machineSchema, type Wish } from './machine.ts';

const row = z.object({ run: z.string(), body: z.string() });

export interface MachineTable {
  put(machine: Machine): void;
  /** All that may exist, oldest first. */
  live(): Machine[];
  /** Those that have been gone since `time`, in seconds, or later. */
  gone(time: number): Machine[];
  /** The newest that are gone, newest first. */
  newest(limit: number): Machine[];
  get(run: string): Machine | null;
  /** Forgets those that were gone before `time`, in seconds. */
  prune(time: number): void;
  /** What people asked for, by host. */
  wanted(): Map<string, Wish>;
  want(host: string, wish: Wish): void;
}

export function machineTable(db: Reader): MachineTable {
  const put = db.prepare(
    `INSERT INTO machines (run, host, gone, since, body) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (run) DO UPDATE SET gone = excluded.gone, since = excluded.since, body = excluded.body`,
  );
  const live = query(db, row, 'SELECT run, body FROM machines WHERE gone = 0 ORDER BY rowid');
  const gone = query(db, row, 'SELECT run, body FROM machines WHERE gone = 1 AND since >= ? ORDER BY since, rowid');
  const newest = query(db, row, 'SELECT run, body FROM machines WHERE gone = 1 ORDER BY since DESC, rowid DESC LIMIT ?');
  const one = query(db, row, 'SELECT run, body FROM machines WHERE run = ?');
  const prune = db.prepare('DELETE FROM machines WHERE gone = 1 AND since < ?');
  const wish = z.object({ host: z.string(), machines: z.int(), until: z.int().nullable() });
  const wanted = query(db, wish, 'SELECT host, machines, until FROM machines_wanted');
  const want = db.prepare(
    `INSERT INTO machines_wanted (host, machines, until) VALUES (?, ?, ?)
    ON CONFLICT (host) DO UPDATE SET machines = excluded.machines, until = excluded.until`,
  );
  const parse = ({ run, body }: z.infer<typeof row>): Machine =>
    understand(db, `machine ${run}`, () => machineSchema.parse(JSON.parse(body)));
  return {
    put: (machine) =>
      void put.run(machine.run, machine.host, machine.state === 'gone' ? 1 : 0, machine.since, JSON.stringify(machine)),
    live: () => live.all().map(parse),
    gone: (time) => gone.all(time).map(parse),
    newest: (limit) => newest.all(limit).map(parse),
    get(run) {
      const found = one.get(run);
      return found === null ? null : parse(found);
    },
    prune: (time) => void prune.run(time),
    wanted: () => new Map(wanted.all().map(({ host, ...wish }) => [host, wish])),
    want: (host, { machines, until }) => void want.run(host, machines, until),
  };
}
