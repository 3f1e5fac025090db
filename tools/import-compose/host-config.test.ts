/** What is written is read as what was meant, whatever texts are in it. */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { parse } from 'yaml';
import { anyCharacter } from '../../test/support/any-character.ts';
import type { Plain, PlainMap } from './agent.ts';
import { configText, scalar } from './host-config.ts';
import type { Agent } from './service.ts';

const text = fc.oneof(
  fc.string(),
  fc.string({ unit: anyCharacter }),
  fc.constantFrom(
    '',
    'yes',
    'null',
    '~',
    '1e3',
    '0x10',
    '0o7',
    '.inf',
    '- a',
    'a: b',
    'a #b',
    '{name}',
    '*a',
    '&a',
    '!x',
    '1:30',
    '16GiB',
    '<<',
    '2027-05-01',
  ),
);
const plain = fc.letrec<{ value: Plain }>((tie) => ({
  value: fc.oneof(
    { depthSize: 'small', withCrossShrink: true },
    text,
    fc.integer(),
    fc.boolean(),
    fc.array(tie('value'), { maxLength: 4 }),
    fc.dictionary(
      text.filter((key) => key !== '__proto__'),
      tie('value'),
      { maxKeys: 4 },
    ),
  ),
})).value;
const keys = fc.dictionary(fc.constantFrom('env', 'image', 'caches', 'tags', 'devices', 'name'), plain) as fc.Arbitrary<PlainMap>;

test('every value comes back', () => {
  fc.assert(
    fc.property(keys, keys, fc.array(text, { maxLength: 2 }), (defaults, pool, head) => {
      const services = { buildkite: { type: 'buildkite' } };
      const agents: Agent[] = [];
      const written = configText({ services, secretsKey: null, defaults, pools: [{ name: 'p', keys: pool, agents }] }, head);
      const expected = { services, ...(Object.keys(defaults).length > 0 ? { defaults } : {}), pools: { p: pool } };
      expect(parse(written)).toEqual(expected);
    }),
    { numRuns: 1000 },
  );
});

test.each([
  ['cuda', 'cuda'],
  ['16GiB', '16GiB'],
  ['/etc/onejob/a.token', '/etc/onejob/a.token'],
  ['RTX 5000', 'RTX 5000'],
  ['2', '"2"'],
  ['true', '"true"'],
  ['a,b', '"a,b"'],
  ['ubuntu:24.04', '"ubuntu:24.04"'],
])('%s is written %s', (value, written) => expect(scalar(value)).toBe(written));
