/** Joins what several outputs report about the same card, for tools that number the cards and may omit the PCI address. */
import { finding } from './finding.ts';
import type { GpuFinding } from './inventory.ts';

interface Listed {
  readonly index: number | null;
  readonly pciId: string | null;
  readonly uniqueId?: string | null;
}

interface Reading<C extends Listed = Listed> {
  readonly source: string;
  readonly cards: readonly C[];
  readonly driver?: string | null;
}

/** A finding when outputs of the same tool contradict each other. Different sources may name a card differently. */
export function differing(readings: readonly Reading[]): GpuFinding | null {
  for (const [source, same] of Map.groupBy(readings, (reading) => reading.source)) {
    const drivers = new Set(same.flatMap((reading) => reading.driver ?? []));
    if (drivers.size > 1) return differ(`${source} was run with the drivers ${[...drivers].slice(0, 4).join(', ')}`);
    const cards = same.flatMap((reading) => reading.cards).filter((card) => card.pciId !== null);
    for (const [index, all] of Map.groupBy(cards, (card) => card.index)) {
      const places = [...new Set(all.map((card) => card.pciId))];
      if (index !== null && places.length > 1) return differ(`card ${index} of ${source} is at ${places.slice(0, 4).join(', ')}`);
    }
    for (const [pciId, all] of Map.groupBy(cards, (card) => card.pciId))
      if (new Set(all.flatMap((card) => card.uniqueId ?? [])).size > 1) return differ(`there are two different cards at ${pciId}`);
  }
  return null;
}

function differ(how: string): GpuFinding {
  const message = `These are recordings of different hosts or times: ${how}.`;
  return finding('error', 'recordings-differ', 'host', message, 'Pass recordings of one host only.');
}

/** Readings of each card: by PCI address, else by the tool's number, else by id. `without`: how many cards have none of these. */
export function byCard<C extends Listed>(readings: readonly Reading<C>[]) {
  const listed = readings.flatMap(({ source, cards }) => cards.map((card) => ({ card, number: `${source} ${card.index}` })));
  const groups = new Map<string, C[]>();
  const addresses = new Map<string, string>();
  for (const { card, number } of listed) {
    if (card.pciId === null) continue;
    if (card.index !== null) addresses.set(number, card.pciId);
    groups.set(card.pciId, [...(groups.get(card.pciId) ?? []), card]);
  }
  const alone = listed.filter(({ card }) => card.pciId === null);
  let without = 0;
  for (const [number, same] of Map.groupBy(alone, ({ number }) => number)) {
    const cards = same.map(({ card }) => card);
    const id = cards.find((card) => card.uniqueId != null)?.uniqueId ?? null;
    const owners = [...groups].filter(([, group]) => id !== null && group.some((card) => card.uniqueId === id));
    const place = addresses.get(number) ?? (owners.length === 1 ? owners[0]?.[0] : undefined);
    if (place !== undefined) groups.get(place)?.push(...cards);
    else if (id !== null) groups.set(number, cards);
    else without += 1;
  }
  return { groups: [...groups.values()], without };
}
