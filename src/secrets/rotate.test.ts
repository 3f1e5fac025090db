/** Encrypted values in a text: each is found and made anew, and nothing else changes. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { ageKey, keysOf, rsaKey } from '../../test/kit/secrets.ts';
import { anyCharacter } from '../../test/support/any-character.ts';
import type { PublicKey } from './keys.ts';
import { decryptSecret } from './open.ts';
import { alreadyThere, replaceSecrets, rotateSecret, secretsInText } from './rotate.ts';
import { seal } from './sealed-format.ts';
import { encryptRsa, encryptSeed } from './seed-format.ts';

const [old, next] = [(await ageKey()).key, (await ageKey()).key];
const [oldRsa, nextRsa] = [rsaKey(), rsaKey()];
const seed = await encryptSeed(oldRsa.publicPem, 'hunter2');
const plain = encryptRsa(oldRsa.key, Buffer.from('hunter2\n')).toString('base64');
const sealed = await seal(old, { name: 'TOKEN', pipelines: ['acme/solver'], value: 'hunter2' });

const pipeline = `# SECRET_NOTE: not one
env:
  SECRET_A: "${seed}"   # the first
  SECRET_B: '${plain}'\r
  SECRET_C: ${sealed}
  SECRET_D: >-
    ${seed}
  SECRET_E: &e "${seed}"
  SECRET_SHORT: on
  SECRET_REF: "$SECRET_A"
  MY_SECRET_X: "${seed}"
json: { "SECRET_F": "${seed}", 'SECRET_G' : "${sealed}" }
list:
  - SECRET_H=${plain}
  - SECRET_BROKEN=${seed.slice(0, 300)}
`;

describe('in a text', () => {
  it('they are found by the variable before them, with their lines', () => {
    const found = secretsInText(pipeline);
    expect(found.map(({ name, line }) => `${name} ${line}`)).toEqual([
      ...['A 3', 'B 4', 'C 5', 'D 7', 'E 8', 'F 12', 'G 12', 'H 14', 'BROKEN 15'],
    ]);
    for (const { at, text } of found) expect(pipeline.slice(at, at + text.length)).toBe(text);
  });

  it('only they change', async () => {
    const { text, replaced, stayed } = await replaceSecrets(pipeline, async ({ name }) =>
      name === 'C' ? { stays: 'so' } : { text: `<${name}>` },
    );
    expect([replaced.length, stayed.map(({ name, why }) => `${name} ${why}`)]).toEqual([8, ['C so']]);
    expect(text).toContain('  SECRET_A: "<A>"   # the first\n  SECRET_B: \'<B>\'\r\n');
    expect(text).toContain(`SECRET_D: >-\n    <D>\n  SECRET_E: &e "<E>"`);
    expect(text).toContain(`MY_SECRET_X: "${seed}"`);
    expect(text).toContain('{ "SECRET_F": "<F>", \'SECRET_G\' : "<G>" }');
  });

  it('a text without any comes out as it went in', async () => {
    await fc.assert(
      fc.asyncProperty(fc.string({ unit: anyCharacter, maxLength: 300 }), async (text) => {
        expect((await replaceSecrets(text, async () => ({ text: '!' }))).text).toBe(text);
      }),
    );
  });

  it('a long text takes no long time', () => {
    const start = performance.now();
    secretsInText('SECRET_A: &'.repeat(50_000));
    secretsInText(`SECRET_${'A'.repeat(500_000)}`);
    secretsInText(`SECRET_A:${' '.repeat(500_000)}`);
    expect(performance.now() - start).toBeLessThan(20_000);
  });
});

describe('one value', () => {
  const from = keysOf(old, oldRsa.key);
  const to: PublicKey = { kind: 'x25519', id: next.id, recipient: next.recipient };
  const toRsa: PublicKey = { kind: 'rsa', id: '00000000', key: nextRsa.key };
  const pipelines = ['acme/docs'];

  it('of the new format keeps what it is for, whatever is said', async () => {
    const made = await rotateSecret({ from, to, pipelines }, { name: 'OTHER', text: sealed });
    expect(await decryptSecret('text' in made ? made.text : '', keysOf(next))).toMatchObject({
      sealed: { name: 'TOKEN', pipelines: ['acme/solver'], value: 'hunter2' },
    });
  });

  it('of the old format is bound to what is said', async () => {
    const made = await rotateSecret({ from, to, pipelines }, { name: 'A', text: seed });
    expect(await decryptSecret('text' in made ? made.text : '', keysOf(next))).toMatchObject({
      sealed: { name: 'A', pipelines, value: 'hunter2' },
    });
  });

  it('of the old format can stay in it, for another RSA key', async () => {
    const made = await rotateSecret({ from, to: toRsa, pipelines: [] }, { name: 'A', text: plain });
    expect(await decryptSecret('text' in made ? made.text : '', keysOf(nextRsa.key))).toMatchObject({
      format: 'seed',
      value: 'hunter2',
    });
  });

  it.each([
    ['it is there already', { from, to: { ...to, id: old.id }, pipelines }, { name: 'A', text: sealed }, alreadyThere],
    ['its pipelines are not given', { from, to, pipelines: [] }, { name: 'A', text: seed }, 'name them with --pipeline'],
    ['its name is not given', { from, to, pipelines }, { name: null, text: seed }, 'name it with --name'],
    ['it would be less safe', { from, to: toRsa, pipelines }, { name: 'A', text: sealed }, 'would be less safe in the old one'],
    ['it does not open', { from: keysOf(nextRsa.key), to, pipelines }, { name: 'A', text: seed }, 'does not decrypt with this key'],
  ])('stays when %s', async (_name, rotation, secret, why) => {
    expect(await rotateSecret(rotation, secret)).toEqual({ stays: expect.stringContaining(why) });
  });
});
