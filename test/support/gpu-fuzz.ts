/**
 * Recordings of GPU tools, damaged in every way that pipes, terminals, editors and hostile jobs damage texts. Whatever comes of
 * it is read without an error and in bounded time, and lists no device that was not printed.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import type { Inventory } from '../../src/gpu/inventory.ts';
import { nvidiaInventory } from '../../src/gpu/nvidia/nvidia.ts';
import { inventoryOf } from '../../src/gpu/recording.ts';
import { allRecordings, recordings } from './gpu-recordings.ts';

/** A place in a text as a part of its length, from 0 to 1. */
type Part = number;
type Damage = (text: string, a: Part, b: Part, pick: number) => string;

const odd = [
  'N/A',
  '[N/A]',
  'Unknown Error',
  'ERR!',
  'GPU is lost',
  '-1',
  '99999999999999999999',
  '',
  '</gpu>',
  '<',
  '&',
  '\u0000',
  '\u001b[2J',
  'GPU-',
  'NaN',
];

const at = (text: string, part: Part) => Math.floor(part * text.length);
const lineAt = (lines: readonly string[], part: Part) => Math.min(lines.length - 1, Math.floor(part * lines.length));
const between = (text: string, a: Part, b: Part) => [at(text, Math.min(a, b)), at(text, Math.max(a, b))] as const;

const damages: Readonly<Record<string, Damage>> = {
  'cut off the end': (text, a) => text.slice(0, at(text, a)),
  'cut off the beginning': (text, a) => text.slice(at(text, a)),
  'cut out a part': (text, a, b) => {
    const [from, to] = between(text, a, b);
    return text.slice(0, from) + text.slice(to);
  },
  'double a part': (text, a, b) => {
    const [from, to] = between(text, a, Math.min(1, a + b / 10));
    return text.slice(0, to) + text.slice(from);
  },
  'double a line': (text, a) => {
    const lines = text.split('\n');
    const line = lineAt(lines, a);
    return lines.toSpliced(line, 0, lines[line] ?? '').join('\n');
  },
  'drop a line': (text, a) => {
    const lines = text.split('\n');
    return lines.toSpliced(lineAt(lines, a), 1).join('\n');
  },
  'swap two lines': (text, a, b) => {
    const lines = text.split('\n');
    const [one, other] = [lineAt(lines, a), lineAt(lines, b)];
    return lines
      .with(one, lines[other] ?? '')
      .with(other, lines[one] ?? '')
      .join('\n');
  },
  'change a byte': (text, a, _, pick) => text.slice(0, at(text, a)) + String.fromCharCode(pick % 256) + text.slice(at(text, a) + 1),
  'change a value': (text, a, _, pick) => {
    const from = text.indexOf('>', at(text, a));
    const to = text.indexOf('<', from);
    const value = odd[pick % odd.length] ?? '';
    if (from < 0 || to < 0) return text.slice(0, at(text, a)) + value + text.slice(at(text, a));
    return text.slice(0, from + 1) + value + text.slice(to);
  },
  'give two the same': (text, a, b) => {
    const all = [...text.matchAll(/(?:GPU|MIG)-[\w-]{8,40}/g)];
    const one = all[Math.min(all.length - 1, Math.floor(a * all.length))];
    const other = all[Math.min(all.length - 1, Math.floor(b * all.length))];
    if (one === undefined || other === undefined) return text;
    return text.slice(0, one.index) + other[0] + text.slice(one.index + one[0].length);
  },
  "Windows' line ends": (text) => text.replaceAll('\n', '\r\n'),
  'one line': (text) => text.replaceAll('\n', ' '),
};

interface Case {
  readonly text: string;
  readonly more: string;
  readonly code: number | null;
  readonly hung: boolean;
}

function cases(): fc.Arbitrary<Case> {
  const files = allRecordings().map((file) => readFileSync(join(recordings, file), 'utf8'));
  const part = fc.double({ min: 0, max: 1, noNaN: true });
  const step = fc.tuple(fc.constantFrom(...Object.keys(damages)), part, part, fc.nat(65_535));
  const damaged = fc
    .tuple(fc.constantFrom(...files), fc.array(step, { minLength: 1, maxLength: 5 }))
    .map(([text, steps]) => steps.reduce((all, [name, a, b, pick]) => damages[name]?.(all, a, b, pick) ?? all, text));
  return fc.record({
    text: damaged,
    more: fc.oneof({ weight: 3, arbitrary: fc.constant('') }, { weight: 1, arbitrary: damaged }),
    code: fc.constantFrom(null, 0, 0, 1, 9, 14, 15, 18, 127, 255),
    hung: fc.constantFrom(false, false, false, true),
  });
}

/** What holds for any inventory; throws where it does not. */
function check(found: Inventory, input: string): void {
  const seen = new Set<string>();
  for (const device of found.devices) {
    const { uuid, parent, vendor, kind } = device;
    if (vendor === 'nvidia' && !input.includes(uuid)) throw new Error(`${uuid} was made up`);
    if (seen.has(uuid)) throw new Error(`${uuid} is listed twice`);
    if (kind === 'mig' && (parent === null || !seen.has(parent))) throw new Error(`${uuid} does not follow its GPU`);
    for (const amount of [device.memoryMiB, device.memoryUsedMiB, device.index, device.minor]) {
      if (amount !== null && !(Number.isInteger(amount) && amount >= 0)) throw new Error(`${uuid} has the number ${amount}`);
    }
    // biome-ignore lint/suspicious/noControlCharactersInRegex: they must not reach a terminal
    if (vendor === 'nvidia' && /[\u0000-\u001f]/.test(device.model + device.processes?.map((each) => each.name))) {
      throw new Error(`a name of ${uuid} moves the cursor`);
    }
    if (device.health.state === 'failed' && device.health.reasons.length === 0) throw new Error(`${uuid} failed for no reason`);
    seen.add(uuid);
  }
  for (const { message, hint } of found.findings) {
    if (message.length > 1500) throw new Error(`a finding of ${message.length} letters`);
    // biome-ignore lint/suspicious/noControlCharactersInRegex: they must not reach a terminal
    if (/[\u0000-\u001f]/.test(message + (hint ?? ''))) throw new Error(`a finding moves the cursor: ${JSON.stringify(message)}`);
  }
}

/** Longest time for one damaged recording, in ms: far more than it takes on a busy machine, far less than a hang. */
const patience = 60_000;

/** The property, for a unit test with a few runs and a long one with as many as fit into its time. */
export function damagedRecordings() {
  return fc.property(cases(), ({ text, more, code, hung }) => {
    const input = `${text}\n${more}`;
    const start = performance.now();
    const reply = (output: string) => ({ tool: 'nvidia-smi', args: [], output, code, hung });
    check(inventoryOf([{ name: 'one', text }, ...(more === '' ? [] : [{ name: 'other', text: more }])]), input);
    check(nvidiaInventory({ xml: reply(text), list: reply(more), procVersion: more }), input);
    check(nvidiaInventory({ list: reply(text), procGpus: [more], pciIds: [text.slice(0, 12)] }), input);
    const took = performance.now() - start;
    if (took > patience) throw new Error(`took ${took.toFixed(0)} ms`);
  });
}
