/** Which of the devices that a pool names are whose: their order is that of its slots. Pure. */
import type { Allocatable, Want } from './lease.ts';

export interface Turn<D extends Allocatable> {
  /** Whether a device is this slot's own. */
  isOwn(device: D): boolean;
  /**
   * Free devices as the slot may take them: by their names, without those that are the own of another slot which has none yet.
   * `hasSome`: by the slot's key.
   */
  inOrder(free: readonly D[], hasSome: (key: string) => boolean): readonly D[];
}

/** The turn of one slot. Upper and lower case are the same, as in the config. */
export function turnOf<D extends Allocatable>(want: Want<D>, key: string): Turn<D> {
  const { named = [], agents, count, share } = want;
  if (named.length === 0) return { isOwn: () => false, inOrder: (free) => free };
  const ranks = new Map(named.map((name, rank) => [name.toLowerCase(), rank]));
  const rankOf = ({ uuid, parent }: Allocatable) =>
    ranks.get(uuid.toLowerCase()) ?? ranks.get(parent?.toLowerCase() ?? '') ?? ranks.size;
  const byRank = (free: readonly D[]) => free.toSorted((one, other) => rankOf(one) - rankOf(other));
  if (agents === 'per-device' || count === 'all') return { isOwn: () => false, inOrder: byRank };
  /** Number of the set, from 0, that a device is in by its own name; a card's name stands for no instance of it in particular. */
  const setOf = ({ uuid }: Allocatable) => {
    const rank = ranks.get(uuid.toLowerCase());
    return rank === undefined ? null : Math.floor(rank / count);
  };
  const sets = Math.ceil(agents / share);
  const mine = Math.floor((Number(key.slice(key.lastIndexOf('/') + 1)) - 1) / share);
  return {
    isOwn: (device) => setOf(device) === mine,
    inOrder(free, hasSome) {
      const waits = (set: number) =>
        Array.from({ length: share }, (_, at) => set * share + at + 1).some((n) => n <= agents && !hasSome(`${want.pool}/${n}`));
      const there = new Map<number, number>();
      for (const device of free) {
        const set = setOf(device);
        if (set !== null) there.set(set, (there.get(set) ?? 0) + 1);
      }
      return byRank(free).filter((device) => {
        const set = setOf(device);
        // What is left of another's set is of no use to that one.
        return set === null || set === mine || set >= sets || there.get(set) !== count || !waits(set);
      });
    },
  };
}
