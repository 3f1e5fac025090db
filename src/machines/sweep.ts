/**
 * Removes what is left over of one owner in one cloud. It needs the owner and a credential, and nothing else: no daemon, no store. It ends
 * when two complete lists in a row show nothing to remove.
 */

import { messageOf, OnejobError } from '../base/errors.ts';
import { type Clock, sleep } from '../core/clock.ts';
import { type Cloud, ownThings, type Thing, thingKinds } from '../ports/cloud.ts';
import { thingKey } from '../store/machine.ts';
import { isLeftOver, type Listed, orphansAfter } from './plan.ts';

export interface SweepResult {
  /** What was asked to go and is gone. */
  readonly removed: readonly Thing[];
  /** What should go, and still lives. */
  readonly left: readonly Thing[];
  /** What lives and may: its machine works, and its end has not come. */
  readonly kept: readonly Thing[];
  /** What could not be listed, and so may live. Empty: the last list was complete. */
  readonly unknown: readonly string[];
  /** When the last complete list was asked for; seconds by the cloud's clock; null: none was complete. */
  readonly listedAt: number | null;
  /** It ended early, because the cloud refused the list in a way that no other try changes. */
  readonly isRefused: boolean;
}

export interface SweepOptions {
  readonly owner: string;
  /** Removes everything of the owner, also what works. */
  readonly all: boolean;
  /** Only shows what would be removed. */
  readonly dryRun: boolean;
  /** ms until it gives up waiting. */
  readonly patience: number;
  readonly told?: (text: string) => void;
}

/** ms between two lists. */
const between = 10_000;

/** Never throws; what went wrong is `unknown`. @throws the reason of `signal` */
export async function sweep(cloud: Cloud, options: SweepOptions, clock: Clock, signal: AbortSignal): Promise<SweepResult> {
  const { owner, all, dryRun, patience, told = () => {} } = options;
  const until = clock.now() + patience;
  const asked = new Map<string, Thing>();
  let orphans: ReadonlyMap<string, number> = new Map();
  let clean = 0;
  let listedAt: number | null = null;
  let said = '';
  for (;;) {
    const from = seconds(clock, cloud);
    const listed = await listAll(cloud, owner, from, signal);
    const now = seconds(clock, cloud);
    orphans = orphansAfter(orphans, listed);
    const isComplete = listed.failed === null && listed.unknown.length === 0;
    if (isComplete) listedAt = now;
    const [over, kept] = [listed.things.filter(isOver), listed.things.filter((thing) => !isOver(thing))];
    const unknown = listed.failed === null ? listed.unknown : [listed.failed];
    const result = (): SweepResult => {
      const there = new Set(listed.things.map(thingKey));
      const removed = [...asked.values()].filter((thing) => !there.has(thingKey(thing)));
      return { removed, left: over, kept, unknown, listedAt, isRefused: listed.isRefused };
    };
    if (listed.isRefused) return result();
    clean = !isComplete || over.length > 0 ? 0 : clean + 1;
    if (clean >= 2 || (dryRun && isComplete && orphans.size === [...orphans.values()].filter((count) => count > 1).length))
      return result();
    if (clock.now() >= until) return result();
    const missing = unknown.join(', ').replace(/\.$/, '');
    if (missing !== '' && missing !== said) told(`cannot list all of it: ${missing}; trying again`);
    said = missing;
    if (!dryRun) await removeFirst(over);
    await sleep(clock, between, signal);
    signal.throwIfAborted();

    function isOver(thing: Thing): boolean {
      return thing.run !== null && (all || isLeftOver(thing, orphans, now));
    }
  }

  /** Machines before their disks: most things end with their machine. */
  async function removeFirst(over: readonly Thing[]): Promise<void> {
    for (const things of Map.groupBy(over, ({ run }) => run).values()) {
      const first = Math.min(...things.map(({ kind }) => thingKinds.indexOf(kind)));
      const isHolder = first <= thingKinds.indexOf('group');
      for (const thing of things) {
        const rank = thingKinds.indexOf(thing.kind);
        if (isHolder && rank > thingKinds.indexOf('group')) continue;
        asked.set(thingKey(thing), thing);
        told(`removing ${thing.kind} ${thing.id}`);
        // The next list tells whether it has gone.
        await cloud.destroy(thing, signal).catch((error: unknown) => {
          signal.throwIfAborted();
          told(messageOf(error));
        });
      }
    }
  }
}

function seconds(clock: Clock, cloud: Cloud): number {
  return Math.floor((clock.wall() + (cloud.skew() ?? 0)) / 1000);
}

type Asked = Listed & { readonly isRefused: boolean };

async function listAll(cloud: Cloud, owner: string, from: number, signal: AbortSignal): Promise<Asked> {
  try {
    const listing = ownThings(await cloud.list(owner, { places: [], everywhere: true }, signal));
    if (listing.refused !== undefined) throw listing.refused;
    return { ...listing, from, at: from, failed: null, isRefused: false };
  } catch (error) {
    signal.throwIfAborted();
    const isRefused = error instanceof OnejobError && !error.retry;
    const failed = isRefused && error.hint !== null ? `${error.message} ${error.hint}` : messageOf(error);
    return { things: [], unknown: [], from, at: from, failed, isRefused };
  }
}
