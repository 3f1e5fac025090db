/** Lists that come in pages. Rows move between pages while a list is read, so it is read again until it is whole. */

/** `total`: of all pages. */
export interface Page<T> {
  readonly total: number;
  readonly rows: readonly T[];
}

/** How often a list is read again that changed while it was read. */
const readings = 3;

/** All rows. `page`: from 1, with `size` rows at most. */
export async function allPages<T extends { readonly id: number }>(
  size: number,
  page: (number: number) => Promise<Page<T>>,
): Promise<T[]> {
  for (let reading = 1; ; reading += 1) {
    const found = new Map<number, T>();
    let total = 0;
    for (let number = 1; ; number += 1) {
      const read = await page(number);
      for (const row of read.rows) found.set(row.id, row);
      total = Math.max(total, read.total);
      if (read.rows.length === 0 || number * size >= total) break;
    }
    if (found.size >= total || reading === readings) return [...found.values()];
  }
}
