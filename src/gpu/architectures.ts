/** Compute capability and architecture of NVIDIA's GPUs by model, for drivers that do not report them; see `models.json`. */

import type { Device } from './inventory.ts';
import known from './models.json' with { type: 'json' };
import { builtInTables } from './tables.ts';

/** In NVIDIA's words, which `product_architecture` uses too. */
const fullName = (name: string): string => (name === 'Ada' ? 'Ada Lovelace' : name);
const { generations } = builtInTables;
const architectures = new Map(generations.flatMap(({ name, compute }) => compute.map((each) => [each, fullName(name)] as const)));

/** The compute capability of an architecture if all its cards, except for Jetsons, have the same one. */
function onlyCapability(architecture: string): string | null {
  const cards = generations.filter(({ name, platform }) => fullName(name) === architecture && platform === undefined);
  const all = cards.flatMap(({ compute }) => compute);
  return all.length === 1 ? (all[0] ?? null) : null;
}

/**
 * The words of an entry must be in the model's name in this order, with any others between them; `#` is a digit. The entry with
 * the most words wins, then the one with the most letters that are not `#`: "Quadro RTX 4000" is not an "RTX 4000 Ada".
 */
const modelNames = Object.entries(known.models).flatMap(([capability, names]) =>
  names.map((entry) => {
    const words = entry.split(' ');
    return { capability, words, rank: words.length * 100 + entry.replaceAll(/[# ]/g, '').length };
  }),
);

/** Both, as far as they are known. The name of the model never overrules the architecture `named` by the driver. */
export function architectureOf(model: string, named: string | null): Pick<Device, 'computeCapability' | 'architecture'> {
  const own = named === null ? null : fullName(named);
  const byModel = capabilityOfModel(model);
  if (own === null) return { computeCapability: byModel, architecture: architectures.get(byModel ?? '') ?? null };
  const isOther = byModel !== null && architectures.get(byModel) !== own;
  return { computeCapability: (isOther ? null : byModel) ?? onlyCapability(own), architecture: own };
}

/** The compute capability that all cards of this name have; null for a name that is not known. */
export function capabilityOfModel(model: string): string | null {
  const words = model.toLowerCase().split(/[^a-z0-9]+/, 20);
  const fitting = modelNames.filter((one) => standIn(one.words, words)).sort((a, b) => b.rank - a.rank);
  return fitting[0]?.capability ?? null;
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
  const isLetter = (letter: string, at: number) => (letter === '#' ? /\d/.test(word[at] ?? '') : letter === word[at]);
  return wanted.length === word.length && [...wanted].every(isLetter);
}
