/**
 * Networks that an Engine before 28.1 keeps although nothing is on them: it has counted one end too many, as it may when several
 * containers come and go at the same time (moby/moby#42119), and nobody can remove them before it is restarted.
 */
import type { Census, CensusRow } from './census.ts';
import { engineAt } from './engine-http.ts';

/**
 * The same census without them: they are not left, they were asked for and refused. Only what the Engine refuses now as well counts as
 * kept; a network that it removes here had been left behind, and stays in the census.
 */
export async function withoutKept(census: Census, socket: string): Promise<Census> {
  if (!census.left.some(({ kind }) => kind === 'network') || census.left.some(({ kind }) => kind === 'container')) return census;
  using engine = engineAt(socket);
  const kept: CensusRow[] = [];
  for (const row of census.left) {
    if (row.kind !== 'network') continue;
    const there = await engine.call('GET', `/networks/${row.id}`);
    const { Containers } = there.body as { Containers?: object };
    if (there.status !== 200 || Object.keys(Containers ?? {}).length > 0) continue;
    if ((await engine.call('DELETE', `/networks/${row.id}`)).status === 403) kept.push(row);
  }
  if (kept.length === 0) return census;
  const why = kept.map(({ id }) => `network ${id}: the Engine says that it is in use, by nothing, and does not remove it`);
  console.warn(why.join('\n'));
  return { rows: census.rows, left: census.left.filter((row) => !kept.includes(row)), blind: [...census.blind, ...why] };
}
