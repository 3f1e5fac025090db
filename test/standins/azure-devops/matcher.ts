/** Demands of jobs against capabilities of agents (.NET client `Demand.cs`, `DemandMinimumVersion.cs`). */

type Demand =
  | { readonly kind: 'exists'; readonly name: string }
  | { readonly kind: 'equals'; readonly name: string; readonly value: string }
  | { readonly kind: 'minimum'; readonly name: string; readonly value: string };

const parsed = new Map<string, Demand | null>();

/** As `parseDemand`, once for each text. */
function demandOf(text: string): Demand | null {
  const known = parsed.get(text);
  if (known !== undefined) return known;
  const demand = parseDemand(text);
  if (parsed.size < 1_000) parsed.set(text, demand);
  return demand;
}

/** Reads `name`, `name -equals value` or `name -gtVersion value`; null for anything else. Quotes belong to the value. */
function parseDemand(text: string): Demand | null {
  const match = /^(?<name>\S+)(?:\s+-(?<op>\S+)\s+(?<value>.*))?$/.exec(text.trim());
  const { name, op, value } = match?.groups ?? {};
  if (name === undefined) return null;
  if (op === undefined || value === undefined) return { kind: 'exists', name };
  if (/^equals$/i.test(op)) return { kind: 'equals', name, value };
  if (/^gtVersion$/i.test(op)) return { kind: 'minimum', name, value };
  return null;
}

/** Less than, equal to or greater than 0, as `a` is older than, as old as or newer than `b`; parts that are missing are 0. */
export function compareVersions(a: string, b: string): number {
  const [left, right] = [a.split('.'), b.split('.')];
  for (let i = 0; i < Math.max(left.length, right.length); i++) {
    const difference = Number.parseInt(left[i] ?? '0', 10) - Number.parseInt(right[i] ?? '0', 10);
    if (difference !== 0) return difference;
  }
  return 0;
}

/** Capabilities by lower-case name. A demand that cannot be read is met by nobody. */
export function meets(capabilities: ReadonlyMap<string, string>, demands: readonly string[]): boolean {
  return demands.every((text) => {
    const demand = demandOf(text);
    const value = demand === null ? undefined : capabilities.get(demand.name.toLowerCase());
    if (demand === null || value === undefined) return false;
    if (demand.kind === 'exists') return true;
    if (demand.kind === 'equals') return value.toLowerCase() === demand.value.toLowerCase();
    return compareVersions(value, demand.value) >= 0;
  });
}
