/** One source's reading of a host's AMD cards. */
import { textOf } from '../fields.ts';
import type { Device, GpuFinding } from '../inventory.ts';

/** One card in one source; null for missing values. Sources number differently, so only readings of one tool may be joined by `index`. */
export interface AmdCard extends Pick<Device, 'index' | 'minor' | 'pciId' | 'memoryMiB' | 'memoryUsedMiB' | 'processes'> {
  /** Sixteen hex digits that stay with the card, the same in every source. */
  readonly uniqueId: string | null;
  readonly model: string | null;
  /** `0x74a1`: for a card without a name. */
  readonly chip: string | null;
  /** `gfx942`: the compiler's target. */
  readonly gfx: string | null;
  readonly ecc: boolean | null;
  readonly uncorrectedErrors: number | null;
  /** Whether it returned a current value, as only a working card does. */
  readonly live: boolean;
  /** Whether it is in one part with the processor. */
  readonly withCpu: boolean;
}

export interface AmdReading {
  /** `sysfs` is the compute driver, `bus` amdgpu's files of a PCI card. */
  readonly source: 'rocm-smi' | 'amd-smi' | 'sysfs' | 'bus';
  readonly driver: string | null;
  readonly cards: readonly AmdCard[];
  readonly findings: readonly GpuFinding[];
  /** Whether it has all cards that the source knows. */
  readonly complete: boolean;
}

const unknownCard: AmdCard = {
  index: null,
  pciId: null,
  uniqueId: null,
  model: null,
  chip: null,
  gfx: null,
  memoryMiB: null,
  memoryUsedMiB: null,
  minor: null,
  ecc: null,
  uncorrectedErrors: null,
  processes: null,
  live: false,
  withCpu: false,
};

/** What a source does not report of a card is unknown. */
export function readingOf(source: AmdReading['source'], driver: string | null, cards: readonly Partial<AmdCard>[]): AmdReading {
  return { source, driver, cards: cards.map((card) => ({ ...unknownCard, ...card })), findings: [], complete: true };
}

/** `0x4edfb117a17a07d`, `249220e172fc1a88`, `GPU-04edfb117a17a07d` as sixteen digits; null for anything else, or all zeros. */
export function uniqueIdOf(value: unknown): string | null {
  const [, digits] = /^(?:0x|GPU-)?([0-9a-f]{6,16})$/i.exec(textOf(value) ?? '') ?? [];
  if (digits === undefined || /^0+$/.test(digits)) return null;
  return digits.toLowerCase().padStart(16, '0');
}

/** A number of the vendor or the chip is not a name, although tools print it as one. */
export function modelName(value: unknown): string | null {
  const name = textOf(value);
  return name !== null && /[g-z]/i.test(name.replace(/^0x/i, '')) ? name : null;
}

export function gfxTarget(value: unknown): string | null {
  return /^gfx\w+$/i.exec(textOf(value) ?? '')?.[0] ?? null;
}
