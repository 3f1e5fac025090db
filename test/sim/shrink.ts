/** Finds fewer happenings that break the same promise. */
import type { Played, Players } from './players.ts';
import type { Happening } from './scenario.ts';

/** What is broken, without the names and numbers in it. */
export function kindOf(broken: string): string {
  return broken.replace(/[0-9a-f]{6,}|\d+/g, '#').slice(0, 60);
}

/** Leaves out halves, quarters, and so on, as long as the same breaks; at most `tries` plays. */
export async function shrink(players: Players, failed: Played, tries = 120): Promise<Played> {
  let best = failed;
  let left = tries;
  const kind = kindOf(failed.broken ?? '');
  for (let size = Math.ceil(best.happenings.length / 2); size >= 1 && left > 0; ) {
    let isSmaller = false;
    for (let from = 0; from < best.happenings.length && left > 0; ) {
      const happenings = without(best.happenings, from, size);
      left -= 1;
      const played = await players.play({ ...failed.order, happenings });
      if (played.broken !== null && kindOf(played.broken) === kind) {
        best = { ...played, happenings };
        isSmaller = true;
      } else from += size;
    }
    if (size === 1 && !isSmaller) break;
    size = size === 1 ? 1 : Math.ceil(size / 2);
  }
  return best;
}

function without(all: readonly Happening[], from: number, count: number): Happening[] {
  return [...all.slice(0, from), ...all.slice(from + count)];
}
