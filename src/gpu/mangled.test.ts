/** Outputs of AMD's and Intel's tools that were cut, shuffled and scribbled on: no throw, and no device that was not printed. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { anyCharacter } from '../../test/support/any-character.ts';
import { amdInventory, looksLikeAmd } from './amd/smi.ts';
import { intelInventory, looksLikeIntel } from './intel/xpu-smi.ts';
import type { Inventory } from './inventory.ts';

const folder = join(import.meta.dirname, '../../test/fixtures/gpu');
const texts = (vendor: string) =>
  readdirSync(join(folder, vendor))
    .filter((name) => name !== 'README.md')
    .map((name) => readFileSync(join(folder, vendor, name), 'utf8'));

type Change = (text: string) => string;

const place = fc.double({ min: 0, max: 1, noNaN: true });
const lineAt = (lines: readonly string[], at: number) => Math.min(lines.length - 1, Math.floor(at * lines.length));
const change: fc.Arbitrary<Change> = fc.oneof(
  place.map(
    (at): Change =>
      (text) =>
        text.slice(0, Math.floor(at * text.length)),
  ),
  place.map(
    (at): Change =>
      (text) =>
        text.slice(Math.floor(at * text.length)),
  ),
  fc.tuple(place, fc.string({ unit: anyCharacter, maxLength: 8 })).map(
    ([at, scribble]): Change =>
      (text) =>
        text.slice(0, Math.floor(at * text.length)) + scribble + text.slice(Math.floor(at * text.length) + scribble.length),
  ),
  fc.tuple(place, place).map(
    ([from, to]): Change =>
      (text) => {
        const lines = text.split('\n');
        return lines.with(lineAt(lines, to), lines[lineAt(lines, from)] ?? '').join('\n');
      },
  ),
  fc.constant((text: string) => text + text),
  fc.constantFrom('N/A', '-1', '"', '{', '0x0', '9'.repeat(40)).map(
    (value): Change =>
      (text) =>
        text.replace(/"[0-9.]+"/, `"${value}"`),
  ),
);

function mangled(vendor: string): fc.Arbitrary<string> {
  const changes = fc.array(change, { minLength: 1, maxLength: 6 });
  return fc.tuple(fc.constantFrom(...texts(vendor)), changes).map(([text, all]) => all.reduce((now, each) => each(now), text));
}

/** Whatever form the tool prints an id in: without leading zeros, in capitals. */
function wasPrinted(text: string, { devices }: Inventory): boolean {
  const said = text.toLowerCase();
  return devices.every(({ uuid, pciId, memoryMiB }) => {
    const [, bus = '-'] = /:(\w\w:\w\w\.\d)$/.exec(pciId ?? '') ?? [];
    const id = /^GPU-0*(\w+)$/.exec(uuid)?.[1] ?? bus;
    return said.includes(id) && (pciId === null || said.includes(bus)) && (memoryMiB === null || memoryMiB >= 0);
  });
}

describe.each([
  ['rocm-smi', looksLikeAmd, amdInventory],
  ['xpu-smi', looksLikeIntel, intelInventory],
] as const)('%s', (vendor, looksLike, inventory) => {
  test('mangled', () => {
    fc.assert(
      fc.property(fc.array(mangled(vendor), { minLength: 1, maxLength: 3 }), (all) => {
        for (const text of all) looksLike(text);
        const found = inventory(all);
        expect(wasPrinted(all.join('\n'), found)).toBe(true);
        expect(new Set(found.devices.map(({ uuid }) => uuid)).size).toBe(found.devices.length);
        for (const { message } of found.findings) expect(message).not.toBe('');
      }),
      { numRuns: 300 },
    );
  });

  test('any JSON', () => {
    fc.assert(
      fc.property(fc.json(), (text) => {
        looksLike(text);
        expect(inventory([text]).devices).toEqual([]);
      }),
    );
  });
});
