/**
 * The store: everything a manager must still know after `kill -9`, in one state directory that one manager leads.
 * The only place with SQL in it.
 */
import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { type Database, openDatabase } from './db.ts';
import { type DeviceTable, deviceTable } from './devices.ts';
import { databaseName, prepareDirectory } from './directory.ts';
import { type HistoryTable, historyTable } from './history.ts';
import { type HoldTable, holdTable } from './holds.ts';
import { type JobTable, jobTable } from './jobs.ts';
import { type Lead, takeLead } from './lead.ts';
import { type ProofTable, proofTable } from './proofs.ts';
import { type RegistrationTable, registrationTable } from './registrations.ts';
import { type SecretPinTable, secretPinTable } from './secret-pins.ts';
import { type ServiceJobTable, serviceJobTable } from './service-jobs.ts';
import { type SlotTable, slotTable } from './slots.ts';

export interface Store {
  /** Real path of the state directory. */
  readonly dir: string;
  /** Id of this installation: made once per state directory, labels everything onejob creates. 12 hex digits. */
  readonly owner: string;
  /** Id of the running boot; times of slots stored in another one mean nothing. */
  readonly bootId: string;
  readonly slots: SlotTable;
  readonly jobs: JobTable;
  readonly history: HistoryTable;
  readonly registrations: RegistrationTable;
  readonly serviceJobs: ServiceJobTable;
  readonly devices: DeviceTable;
  readonly proofs: ProofTable;
  readonly secretPins: SecretPinTable;
  readonly holds: HoldTable;
  /**
   * Runs `fn` as one commit; a throw rolls it back. `durable`: the commit outlives a power cut; otherwise it outlives a
   * crash of the process only. Not to be nested.
   * @throws OnejobError E_STATE_FULL (retry) when the disk does not take it, and whatever `fn` throws
   */
  transaction<T>(options: { readonly durable: boolean }, fn: () => T): T;
  /** Makes every commit so far outlive a power cut: one sync for many commits. @throws OnejobError E_STATE_FULL */
  sync(): Promise<void>;
  /** The same before it returns. @throws OnejobError E_STATE_FULL */
  syncNow(): void;
  /** Writes down where this manager listens, for clients of the state directory; null: not any more. */
  listens(socket: string | null): void;
  /** House-keeping for quiet moments: about every minute is enough. */
  checkpoint(): void;
  close(): void;
}

/** @throws OnejobError E_STATE_DIR, E_STATE_NETWORK_FS, E_STATE_LED, E_STATE_CORRUPT, E_STATE_NEWER, E_STATE_FULL */
export function openStore(stateDir: string, options: { readonly temporary?: boolean } = {}): Store {
  const dir = prepareDirectory(stateDir);
  const lead = takeLead(dir, options);
  let db: Database | null = null;
  try {
    db = openDatabase(join(dir, databaseName));
    return assemble(dir, db, lead);
  } catch (error) {
    db?.close();
    lead.release();
    throw error;
  }
}

function assemble(dir: string, db: Database, lead: Lead): Store {
  const bootId = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
  return {
    dir,
    owner: ownerOf(db),
    bootId,
    slots: slotTable(db, bootId),
    jobs: jobTable(db),
    history: historyTable(db),
    registrations: registrationTable(db),
    serviceJobs: serviceJobTable(db),
    devices: deviceTable(db),
    proofs: proofTable(db),
    secretPins: secretPinTable(db),
    holds: holdTable(db),
    transaction: (options, fn) => db.transaction(options, fn),
    sync: () => db.sync(),
    syncNow: () => db.syncNow(),
    listens: (socket) => lead.listens(socket),
    checkpoint: () => db.checkpoint(),
    close() {
      db.close();
      lead.release();
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
