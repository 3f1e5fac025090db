/** Joins what several outputs report about the same card, for tools that number the cards and may omit the PCI address. */

interface Listed {
  readonly index: number | null;
  readonly pciId: string | null;
  readonly uniqueId?: string | null;
}

/** A card of one tool that is at several addresses, so that its outputs are from different hosts; null when there is none. */
export function movedCard(cards: readonly Listed[]): { readonly index: number; readonly places: readonly string[] } | null {
  for (const [index, same] of Map.groupBy(cards, (card) => card.index)) {
    const places = [...new Set(same.flatMap((card) => card.pciId ?? []))];
    if (index !== null && places.length > 1) return { index, places };
  }
  return null;
}

/** Readings of each card: by PCI address, else by the tool's number, else by id. `without`: how many cards have none of these. */
export function byCard<C extends Listed>(readings: readonly { readonly source: string; readonly cards: readonly C[] }[]) {
  const said = readings.flatMap(({ source, cards }) => cards.map((card) => ({ card, number: `${source} ${card.index}` })));
  const groups = new Map<string, C[]>();
  const addresses = new Map<string, string>();
  for (const { card, number } of said) {
    if (card.pciId === null) continue;
    if (card.index !== null) addresses.set(number, card.pciId);
    groups.set(card.pciId, [...(groups.get(card.pciId) ?? []), card]);
  }
  const alone = said.filter(({ card }) => card.pciId === null);
  let without = 0;
  for (const [number, same] of Map.groupBy(alone, (one) => one.number)) {
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
