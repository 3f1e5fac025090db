/** What breaks the order of the house: circles of any kind, and imports that run up the list of floors. */
import { circlesOf, type Import, roomOf } from './graph.ts';

export interface Violations {
  /** Files that import each other, over one or more steps. */
  readonly circles: readonly (readonly string[])[];
  /** `from → to` of each import that runs up, or between rooms that the list does not name. */
  readonly up: readonly string[];
}

export function violationsOf(imports: readonly Import[], floors: readonly string[]): Violations {
  const floorOf = new Map(floors.map((room, floor) => [room, floor]));
  const runsUp = ({ from, to }: Import): boolean => {
    const [here, there] = [roomOf(from), roomOf(to)];
    return here !== there && (floorOf.get(there) ?? Number.POSITIVE_INFINITY) >= (floorOf.get(here) ?? -1);
  };
  const up = imports.filter(runsUp).map(({ from, to }) => `${from} → ${to}`);
  return { circles: circlesOf(imports), up: [...new Set(up)].sort() };
}

/** Pairs of rooms that import each other. */
export function mutualPairs(imports: readonly Import[]): string[] {
  const arrows = new Set(imports.map(({ from, to }) => `${roomOf(from)} ${roomOf(to)}`));
  return [...arrows].filter((arrow) => {
    const [from = '', to = ''] = arrow.split(' ');
    return from < to && arrows.has(`${to} ${from}`);
  });
}
