/**
 * The store: everything that a manager must still know after `kill -9`, in a state directory with one leader. The only place with
 * SQL.
 */
import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { z } from 'zod';
import { OnejobError } from '../base/errors.ts';
import { type Clock, sleep } from '../core/clock.ts';
import { bootId } from '../system/process-identity.ts';
import { systemClock } from '../system/system-clock.ts';
import { type Database, openDatabase } from './db.ts';
import { deviceTable, proofTable } from './devices.ts';
import { databaseName, prepareDirectory } from './directory.ts';
import { heldTable } from './held.ts';
import { historyTable } from './history.ts';
import { holdTable } from './holds.ts';
import { jobTable } from './jobs.ts';
import { type Lead, leaderOf, takeLead } from './lead.ts';
import { machineTable } from './machines.ts';
import { noticeTable } from './notices.ts';
import { outcomeTable } from './outcomes.ts';
import { provedImageTable } from './proved-images.ts';
import { registrationTable } from './registrations.ts';
import { secretPinTable } from './secret-pins.ts';
import { serviceJobTable } from './service-jobs.ts';
import { shareTable } from './shares.ts';
import { slotTable } from './slots.ts';

export type Store = ReturnType<typeof assemble>;

/** @throws OnejobError E_STATE_DIR, E_STATE_NETWORK_FS, E_STATE_LED, E_STATE_CORRUPT, E_STATE_NEWER, E_STATE_FULL */
export function openStore(stateDir: string, { temporary = false }: { readonly temporary?: boolean } = {}): Store {
  const dir = prepareDirectory(stateDir);
  const lead = takeLead(dir, { temporary });
  let db: Database | null = null;
  try {
    db = openDatabase(join(dir, databaseName));
    return assemble(dir, db, lead, temporary);
  } catch (error) {
    db?.close();
    lead.release();
    throw error;
  }
}

function assemble(dir: string, db: Database, lead: Lead, temporary: boolean) {
  const boot = bootId();
  return {
    /** Real path of the state directory. */
    dir,
    /** Id of this installation: created once per state directory, and a label of everything that onejob creates. 12 hex digits. */
    owner: ownerOf(db),
    /** Id of the running boot; times of slots from another boot mean nothing. */
    bootId: boot,
    /** Whether its manager ends with its last job, and makes no agents that wait for jobs. */
    temporary,
    slots: slotTable(db, boot),
    jobs: jobTable(db),
    history: historyTable(db),
    outcomes: outcomeTable(db),
    registrations: registrationTable(db),
    serviceJobs: serviceJobTable(db),
    devices: deviceTable(db),
    proofs: proofTable(db),
    secretPins: secretPinTable(db),
    holds: holdTable(db),
    held: heldTable(db),
    notices: noticeTable(db),
    provedImages: provedImageTable(db),
    machines: machineTable(db),
    shares: shareTable(db),
    /**
     * Runs `fn` as one commit; an error rolls it back. `durable`: the commit survives a power cut; otherwise only a crash of the
     * process. Not to be nested.
     * @throws OnejobError E_STATE_FULL (retry) if the disk refuses it, and whatever `fn` throws
     */
    transaction: db.transaction,
    /** Makes every commit so far survive a power cut: one sync for many commits. @throws OnejobError E_STATE_FULL */
    sync: db.sync,
    /** The same, synchronously. @throws OnejobError E_STATE_FULL */
    syncNow: db.syncNow,
    /** Records where this manager listens, for clients of the state directory; null: nowhere. */
    listens: lead.listens,
    /** Runtimes on which there may be something of ours, also of configs before. */
    runtimes: usedRuntimes(db),
    /** Housekeeping for quiet moments: about every minute is enough. */
    checkpoint: db.checkpoint,
    close(): void {
      db.close();
      lead.release();
    },
  };
}

function usedRuntimes(db: Database) {
  const get = db.prepare("SELECT value FROM meta WHERE key = 'runtimes'");
  const put = db.prepare("INSERT OR REPLACE INTO meta (key, value) VALUES ('runtimes', ?)");
  const all = (): readonly string[] => z.array(z.string()).parse(JSON.parse(String(get.get()?.value ?? '[]')));
  return {
    all,
    /** On disk once it returns. */
    add(name: string): void {
      const known = all();
      if (!known.includes(name)) db.transaction({ durable: true }, () => put.run(JSON.stringify([...known, name])));
    },
    /** Nothing is left there. */
    remove(names: readonly string[]): void {
      if (names.length > 0)
        db.transaction({ durable: true }, () => put.run(JSON.stringify(all().filter((name) => !names.includes(name)))));
    },
  };
}

function ownerOf(db: Database): string {
  return db.transaction({ durable: true }, () => {
    const get = db.prepare("SELECT value FROM meta WHERE key = 'owner'");
    const found = get.get();
    if (found !== undefined) return String(found.value);
    const made = randomBytes(6).toString('hex');
    db.prepare("INSERT INTO meta (key, value) VALUES ('owner', ?)").run(made);
    return made;
  });
}

const [usualPatience, again] = [30_000, 50];

interface OpenOptions {
  readonly temporary: boolean;
  /** Tells the temporary manager that listens there to leave its agents and end. May fail: it is told again. */
  readonly tellToLeave: (socket: string) => Promise<void>;
  /** ms to wait for one that does not leave. Default 30 s. */
  readonly patience?: number;
  readonly clock?: Clock;
}

/**
 * Takes the lead. A permanent daemon does not wait for a temporary manager to end: it tells it to leave, and adopts its jobs.
 * @throws OnejobError what `openStore` throws; E_STATE_LED at once if the leader is permanent or this one is temporary, too, else
 * after `patience`
 */
export async function openWhenFree(stateDir: string, options: OpenOptions): Promise<Store> {
  const { temporary, tellToLeave, patience = usualPatience, clock = systemClock } = options;
  for (const until = clock.now() + patience; ; ) {
    try {
      return openStore(stateDir, { temporary });
    } catch (error) {
      // A temporary one has a client that joins the leader.
      if (!(error instanceof OnejobError) || error.code !== 'E_STATE_LED' || temporary) throw error;
      const leader = leaderOf(stateDir);
      // Without a record the leader is just starting or ending.
      if (leader?.temporary === false) throw error;
      if (clock.now() > until) throw leader === null ? error : stays(stateDir, leader.pid, patience);
      if (leader?.socket != null) await tellToLeave(leader.socket).catch(() => {});
      await sleep(clock, again);
    }
  }
}

function stays(dir: string, pid: number, patience: number): OnejobError {
  const message = `A temporary onejob (pid ${pid}) leads the state directory ${dir}, and did not give it up within ${patience / 1000} s.`;
  const hint = `Type "kill -9 ${pid}" and start again: its jobs continue, and the new daemon takes them over.`;
  return new OnejobError('E_STATE_LED', message, { hint });
}
