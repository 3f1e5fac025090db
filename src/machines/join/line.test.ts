import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { lineOf, linesOf, longestText } from './line.ts';

const run = 'onejob-0123456789abcdef';
const other = 'onejob-fedcba9876543210';

describe('lines of a machine on its console', () => {
  it('are found between what others write there, with the ends of lines of a serial port', () => {
    const text = [
      '[    0.000000] Linux version 6.8.0',
      `${lineOf(run, 'booted', '6.8.0\n')}\r`,
      'onejob: booted',
      `cloud-init[900]: ${lineOf(run, 'docker-ok', 'not at the beginning')}`,
      lineOf(other, 'failed', 'of another machine'),
      lineOf(run, 'beat', '{}'),
      '',
    ].join('\n');
    expect(linesOf(text, run).map(({ word, text: said }) => [word, said])).toEqual([
      ['booted', '6.8.0\n'],
      ['beat', '{}'],
    ]);
  });

  it('that are torn, changed or of unknown words do not count', () => {
    const line = lineOf(run, 'driver-ok', 'NVIDIA L4, 580.95.05, 23034 MiB');
    const wrong = [
      line.slice(0, -1),
      line.slice(1),
      line.replace('driver-ok', 'docker-ok'),
      `${line} `,
      lineOf(run, 'rm' as 'beat', ''),
    ];
    expect(linesOf(wrong.join('\n'), run)).toEqual([]);
  });

  it('have texts without control characters, and of a long one its end', () => {
    expect(linesOf(lineOf(run, 'failed', 'a\u001b[31mb\u0007\tc\nd'), run)[0]?.text).toBe('a [31mb  c\nd');
    expect(linesOf(lineOf(run, 'failed', `${'x'.repeat(9_000)}the end`), run)[0]?.text).toMatch(/^x{2041}the end$/);
    expect(longestText).toBe(2048);
  });

  it('whatever the console has, reading it ends and finds only what was written', () => {
    fc.assert(
      fc.property(fc.string(), fc.string({ unit: 'binary' }), (before, text) => {
        const found = linesOf(`${before.replaceAll('onejob', '')}\n${lineOf(run, 'failed', text)}\n${before}`, run);
        expect(found).toHaveLength(1);
      }),
    );
  });
});
