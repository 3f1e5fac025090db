/** Generation of an AMD chip, from what programs are compiled for, else from its name. */

/** LLVM's targets by generation: https://llvm.org/docs/AMDGPUUsage.html#processors */
const targets: readonly (readonly [RegExp, string])[] = [
  [/^gfx95/, 'CDNA 4'],
  [/^gfx94/, 'CDNA 3'],
  [/^gfx90a/, 'CDNA 2'],
  [/^gfx908/, 'CDNA'],
  [/^gfx9/, 'Vega'],
  [/^gfx8/, 'GCN 4'],
  [/^gfx12/, 'RDNA 4'],
  [/^gfx115/, 'RDNA 3.5'],
  [/^gfx11/, 'RDNA 3'],
  [/^gfx103/, 'RDNA 2'],
  [/^gfx10/, 'RDNA'],
];

const names: readonly (readonly [RegExp, string])[] = [
  [/\bMI35\d/i, 'CDNA 4'],
  [/\bMI3[02]\d/i, 'CDNA 3'],
  [/\bMI2[15]\d/i, 'CDNA 2'],
  [/\bMI100\b/i, 'CDNA'],
  [/\b(MI[2568][05]?|Vega|Radeon VII)\b/i, 'Vega'],
  [/\b(RX 9\d{3}|AI PRO R9\d{3})/i, 'RDNA 4'],
  [/\b(RX 7\d{3}|PRO W7\d{3}|Navi 3\d)/i, 'RDNA 3'],
  [/\b(RX 6\d{3}|PRO W6\d{3}|Navi 2\d)/i, 'RDNA 2'],
  [/\b(RX 5[1-7]\d{2}|PRO W5\d{3}|Navi 1\d)/i, 'RDNA'],
];

/** null when neither says it. */
export function amdArchitecture(gfx: string | null, model: string | null): string | null {
  const found =
    targets.find(([form]) => gfx !== null && form.test(gfx)) ?? names.find(([form]) => model !== null && form.test(model));
  return found?.[1] ?? null;
}
