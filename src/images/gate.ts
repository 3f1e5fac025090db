/**
 * The gate that an image of NVIDIA has itself: the container toolkit reads `NVIDIA_REQUIRE_CUDA` and refuses to start the
 * image on a host whose CUDA is older, but for some branches of the driver and some brands of GPUs.
 */
import type { Gate, Tables } from './tables.ts';
import { major } from './version.ts';

/**
 * The brands, in the words of gates, that a GPU of this name may have: the driver knows it, its tool does not print it.
 * null where the name says nothing.
 */
export function brandsOf(model: string): readonly string[] | null {
  const name = model.toLowerCase().replace(/^nvidia\s+/, '');
  if (/\bgeforce\b/.test(name)) return ['geforce', 'geforcertx'];
  if (/\btitan\b/.test(name)) return ['titan', 'titanrtx'];
  if (/\bquadro\b/.test(name)) return ['quadro', 'quadrortx'];
  if (/^rtx\b/.test(name)) return ['nvidiartx', 'quadrortx', 'nvidia'];
  if (/^grid\b/.test(name)) return ['grid', 'tesla', 'nvidia'];
  return /^tesla\b|^(?:[abhlptv]\d{1,3}[a-z]{0,2}|g[bh]\d{3}|m(?:10|40|60)|k80)\b/.test(name) ? ['tesla', 'nvidia'] : null;
}

/** Whether it lets in a host whose CUDA is older than the image's: only if it does whichever brand each GPU has. */
export function admits(gate: Gate | null, tables: Tables, driver: string, models: readonly string[]): boolean {
  if (gate === null || !gate.branches.includes(major(driver))) return false;
  const admitted = tables.brands[gate.brands] ?? [];
  const all = [...new Set(Object.values(tables.brands).flat())];
  return models.every((model) => (brandsOf(model) ?? all).every((brand) => admitted.includes(brand)));
}
