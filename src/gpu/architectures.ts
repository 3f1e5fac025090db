/**
 * Compute capability and architecture of NVIDIA's GPUs by the name of the model, for drivers that do not say them. A name that
 * is not in the table stays unknown.
 *
 * Sources: NVIDIA, "CUDA GPU Compute Capability" and its page of legacy GPUs; names as drivers print them. As of autumn 2026.
 */

/** Compute capabilities by architecture, in NVIDIA's words, which are also those of `product_architecture`. */
const capabilities: readonly (readonly [architecture: string, capabilities: string])[] = [
  ['Fermi', '2.0, 2.1'],
  ['Kepler', '3.0, 3.2, 3.5, 3.7'],
  ['Maxwell', '5.0, 5.2, 5.3'],
  ['Pascal', '6.0, 6.1, 6.2'],
  ['Volta', '7.0, 7.2'],
  ['Turing', '7.5'],
  ['Ampere', '8.0, 8.6, 8.7'],
  ['Ada Lovelace', '8.9'],
  ['Hopper', '9.0'],
  ['Blackwell', '10.0, 10.1, 10.3, 11.0, 12.0, 12.1'],
];
const architectures: ReadonlyMap<string, string> = new Map(
  capabilities.flatMap(([architecture, all]) => all.split(', ').map((capability) => [capability, architecture] as const)),
);

/** Where all cards of an architecture, but for Jetsons, have the same compute capability. */
const only: ReadonlyMap<string, string> = new Map([
  ['Volta', '7.0'],
  ['Turing', '7.5'],
  ['Ada Lovelace', '8.9'],
  ['Hopper', '9.0'],
]);

/**
 * Words that stand in a model's name in this order, others between them allowed; `#` is any digit. The entry with the most
 * words wins, then the one with the most letters that are not `#`: "Quadro RTX 4000" is not an "RTX 4000 Ada".
 */
const models: readonly (readonly [capability: string, names: string])[] = [
  ['2.0', 'tesla c20##, tesla m20##, tesla s20##'],
  [
    '3.0',
    `gtx 6#0, gtx 760, gtx 770, k10, k340, k520, grid k1, grid k2, quadro k420, quadro k600, quadro k2000,
     quadro k4000, quadro k4200, quadro k5000`,
  ],
  [
    '3.5',
    `gt 710, gt 720, gt 730, gtx 780, gtx titan, k20, k20c, k20m, k20s, k20x, k20xm, k40, k40c, k40m, k40s,
     k40t, quadro k5200, quadro k6000`,
  ],
  ['3.7', 'k80'],
  [
    '5.0',
    `gtx 745, gtx 750, gtx 950m, gtx 960m, m10, quadro k620, quadro k1200, quadro k2200, quadro m1000m,
     quadro m1200, quadro m2000m`,
  ],
  [
    '5.2',
    `gtx 950, gtx 960, gtx 965m, gtx 970, gtx 970m, gtx 980, gtx 980m, gtx titan x, m4, m6, m40, m60,
     quadro m2000, quadro m4000, quadro m5000, quadro m6000`,
  ],
  ['5.3', 'tegra x1'],
  ['6.0', 'p100, gp100'],
  [
    '6.1',
    `gt 10##, gtx 10##, mx150, mx250, mx350, p4, p6, p40, p102, p104, p106, quadro p###, quadro p####, titan x,
     titan xp`,
  ],
  ['7.0', 'gv100, titan v, v100, v100d, v100dx, v100l, v100s, v100x'],
  ['7.2', 'xavier'],
  [
    '7.5',
    `cmp 30hx, cmp 40hx, cmp 50hx, gtx 16##, mx450, mx550, quadro rtx ####, quadro t####, quadro t###,
     rtx 2060, rtx 2070, rtx 2080, t4, t4g, t400, t500, t550, t600, t1000, t1200, t2000, titan rtx`,
  ],
  ['8.0', 'a30, a30x, a100, a100d, a100dx, a100x, a800, cmp 170hx'],
  [
    '8.6',
    `a2, a10, a10g, a10m, a16, a40, cmp 90hx, mx570, rtx 2050, rtx 3050, rtx 3060, rtx 3070, rtx 3080,
     rtx 3090, rtx a###, rtx a####`,
  ],
  ['8.7', 'orin'],
  ['8.9', 'l2, l4, l20, l40, l40g, l40s, rtx 4050, rtx 4060, rtx 4070, rtx 4080, rtx 4090, rtx ### ada, rtx #### ada'],
  ['9.0', 'gh200, h20, h100, h200, h800'],
  ['10.0', 'b100, b200, gb200'],
  ['10.3', 'b300, gb300'],
  ['11.0', 'thor'],
  ['12.0', 'rtx 5050, rtx 5060, rtx 5070, rtx 5080, rtx 5090, rtx pro'],
  ['12.1', 'gb10'],
];

const modelNames = models.flatMap(([capability, names]) =>
  names.split(/,\s+/).map((entry) => {
    const words = entry.split(' ');
    // More words say more, and so do longer ones.
    return { capability, words, rank: words.length * 100 + entry.replaceAll(/[# ]/g, '').length };
  }),
);

/** Both as far as they can be known: by the name of the model, never against the architecture that the driver named. */
export function architectureOf(
  model: string,
  named: string | null,
): { readonly computeCapability: string | null; readonly architecture: string | null } {
  const said = named === 'Ada' ? 'Ada Lovelace' : named;
  const computeCapability = byModel(model, said) ?? (said === null ? null : (only.get(said) ?? null));
  return {
    computeCapability,
    architecture: said ?? (computeCapability === null ? null : (architectures.get(computeCapability) ?? null)),
  };
}

function byModel(model: string, architecture: string | null): string | null {
  const capability = capabilityOfModel(model);
  return capability !== null && architecture !== null && architectures.get(capability) !== architecture ? null : capability;
}

/** The compute capability that all cards of this name have; null for a name that is not known. */
export function capabilityOfModel(model: string): string | null {
  const words = model
    .toLowerCase()
    .split(/[^a-z0-9]+/)
    .slice(0, 20);
  let best: { capability: string; rank: number } | null = null;
  for (const one of modelNames) if (one.rank > (best?.rank ?? 0) && standIn(one.words, words)) best = one;
  return best?.capability ?? null;
}

function standIn(wanted: readonly string[], words: readonly string[]): boolean {
  let from = 0;
  for (const each of wanted) {
    const at = words.findIndex((word, place) => place >= from && isWord(each, word));
    if (at < 0) return false;
    from = at + 1;
  }
  return true;
}

function isWord(wanted: string, word: string): boolean {
  return (
    wanted.length === word.length &&
    [...wanted].every((letter, at) => (letter === '#' ? /\d/.test(word[at] ?? '') : letter === word[at]))
  );
}
