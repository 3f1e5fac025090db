/** Sizes of machines with a GPU: which of them a driver of today supports. */

/** NVIDIA's driver branches of today need Turing or newer; what is older, and what has no driver for Linux. */
const refused: readonly (readonly [RegExp, string])[] = [
  [/^Standard_NC\d+r?(_Promo)?$/i, 'has a K80, which is older than Turing: no driver of today supports it'],
  [/^Standard_NC\d+r?s_v2$/i, 'has a P100, which is older than Turing: no driver of today supports it'],
  [/^Standard_NC\d+r?s_v3$/i, 'has a V100, which is older than Turing: no driver of today supports it'],
  [/^Standard_ND\d+r?s$/i, 'has a P40, which is older than Turing: no driver of today supports it'],
  [/^Standard_ND\d+rs_v2$/i, 'has V100 cards, which are older than Turing: no driver of today supports them'],
  [/^Standard_NV\d+(_Promo|s_v2|s_v3)?$/i, 'has an M60, which is older than Turing: no driver of today supports it'],
  [/^Standard_NV\d+as_v4$/i, 'has a part of an AMD MI25, for which there is a driver for Windows only'],
  [
    /^Standard_NC\d.*_v6$/i,
    "is of the NCv6 series (RTX PRO 6000), which works only with NVIDIA's vGPU driver 595.58.03-grid-azure, and with Secure Boot and vTPM off",
  ],
];

const form = /^Standard_[A-Z]+\d[A-Za-z0-9_-]*$/;

/** A sentence that says why a size cannot be used; null: it can. */
export function sizeProblem(size: string): string | null {
  if (!form.test(size)) return `"${size}" is not the name of a size; write it as Azure does, such as Standard_NC4as_T4_v3.`;
  const why = refused.find(([pattern]) => pattern.test(size))?.[1];
  return why === undefined ? null : `${size} ${why}. Use Standard_NC4as_T4_v3, Standard_NC24ads_A100_v4 or newer.`;
}

/** Slices of an A10, whose driver is NVIDIA's GRID driver: Canonical's does not see them. */
export function needsGrid(size: string): boolean {
  return /^Standard_NV\d+a?d?m?s_A10_v5$/i.test(size);
}

/** Premium disks are for sizes with an `s` among the letters behind their number (Azure's naming of sizes). */
export function diskTypeOf(size: string): 'Premium_LRS' | 'StandardSSD_LRS' {
  return /^Standard_[A-Z]+\d+(-\d+)?[a-z]*s/.test(size) ? 'Premium_LRS' : 'StandardSSD_LRS';
}
