/** Foreign values, looked at one by one: of a Compose file each key may be fine while its neighbour is nonsense. */

export function isMap(found: unknown): found is Record<string, unknown> {
  return typeof found === 'object' && found !== null && !Array.isArray(found);
}

/** A scalar as Compose would pass it on; null when it is none. */
export function textOf(found: unknown): string | null {
  if (typeof found === 'string') return found;
  return typeof found === 'number' || typeof found === 'boolean' || typeof found === 'bigint' ? String(found) : null;
}

export function listOf(found: unknown): readonly unknown[] {
  return found === undefined || found === null ? [] : Array.isArray(found) ? found : [found];
}

/** `KEY: value` or `- KEY=value`; null for a key without a value, which Compose takes from the shell. */
export function pairsOf(found: unknown): readonly { key: string; value: string | null; at: string | number }[] {
  if (isMap(found)) return Object.entries(found).map(([key, value]) => ({ key, value: textOf(value), at: key }));
  return listOf(found).flatMap((item, at) => {
    const text = textOf(item);
    if (text === null) return [];
    const cut = text.indexOf('=');
    return [{ key: (cut < 0 ? text : text.slice(0, cut)).trim(), value: cut < 0 ? null : text.slice(cut + 1), at }];
  });
}

/** Words of a command as a shell would see them: quotes and backslashes, nothing else. */
export function wordsOf(found: unknown): readonly string[] {
  if (Array.isArray(found)) return found.flatMap((item) => textOf(item) ?? []);
  const text = textOf(found);
  if (text === null) return [];
  return [...text.matchAll(/(?:[^\s"'\\]|\\.|"(?:[^"\\]|\\.)*"|'[^']*')+/gs)].map(([word]) =>
    word.replaceAll(
      /"((?:[^"\\]|\\.)*)"|'([^']*)'|\\(.)/gs,
      (_, double?: string, single?: string, escaped?: string) =>
        single ?? escaped ?? (double ?? '').replaceAll(/\\(["\\$`])/g, '$1'),
    ),
  );
}

/** Sizes as Compose writes them, `24g`, `512mb`, bytes, as the config does; null when it is none. */
export function sizeOf(found: unknown): string | null {
  const [, digits, unit = ''] = /^(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?$/i.exec(textOf(found)?.trim() ?? '') ?? [];
  if (digits === undefined) return null;
  const power = ['', 'k', 'm', 'g', 't'].indexOf(unit.toLowerCase());
  const bytes = Math.round(Number(digits) * 1024 ** power);
  for (const [at, name] of ['TiB', 'GiB', 'MiB', 'KiB'].entries()) {
    const step = 1024 ** (4 - at);
    if (bytes >= step && bytes % step === 0) return `${bytes / step}${name}`;
  }
  return `${bytes}B`;
}

export function numberOf(found: unknown): number | null {
  const text = textOf(found)?.trim() ?? '';
  return /^-?\d+(\.\d+)?$/.test(text) ? Number(text) : null;
}
