/** A job's secrets as a whole: what it gets, what is refused to it and why, and what is remembered. */
import { describe, expect, it } from 'vitest';
import { ageKey, keysOf, rsaKey } from '../../test/kit/secrets.ts';
import { covers, listPipelines, parsePipeline } from '../schema/pipelines.ts';
import { decidePin, type JobSecrets, mostSecrets, openJobSecrets, type PinStore } from './job-secrets.ts';
import { type SecretFormat, secretFingerprint } from './open.ts';
import { seal } from './sealed-format.ts';
import { encryptRsa, encryptSeed } from './seed-format.ts';

const age = (await ageKey()).key;
const rsa = rsaKey();
const keys = keysOf(age, rsa.key);
const seed = await encryptSeed(rsa.publicPem, 'hunter2');
const sealed = await seal(age, { name: 'NEW', pipelines: ['acme/solver'], value: 'hunter3' });

function book(): PinStore & { readonly known: Map<string, string[]> } {
  const known = new Map<string, string[]>();
  return {
    known,
    of: (fingerprint) => known.get(fingerprint) ?? [],
    first(fingerprint, pipeline) {
      const has = known.get(fingerprint) ?? [pipeline];
      known.set(fingerprint, has);
      return has;
    },
  };
}
const open = (env: Record<string, string>, pipeline: string | null, pins: PinStore): Promise<JobSecrets> =>
  openJobSecrets({ env, organisation: 'acme', pipeline, keys, pins });

describe('of the old format', () => {
  it('belong to the first pipeline that opens one; another learns whose it is and what to type', async () => {
    const pins = book();
    const fingerprint = secretFingerprint(seed);
    expect(await open({ SECRET_OLD: seed }, 'solver', pins)).toEqual({ opened: [{ name: 'OLD', value: 'hunter2' }], refused: [] });
    expect([...pins.known]).toEqual([[fingerprint, ['acme/solver']]]);
    expect(await open({ SECRET_OLD: seed }, 'solver', pins)).toMatchObject({ refused: [] });
    const { opened, refused } = await open({ SECRET_OLD: seed }, 'docs', pins);
    expect(opened).toEqual([]);
    expect(refused).toEqual([
      {
        name: 'OLD',
        why:
          'SECRET_OLD is in the old format and belongs to acme/solver, which used it first or was allowed to use it; if acme/docs may use it too, ' +
          `type "onejob secret allow --pipeline acme/docs ${fingerprint}" on the host.`,
      },
    ]);
  });

  it('are not got round by changing what is behind the semicolon, or by taking it away', async () => {
    const pins = book();
    await open({ SECRET_OLD: seed }, 'solver', pins);
    const [first = '', second = ''] = seed.split(';');
    const longer = Buffer.concat([Buffer.from(second, 'base64'), Buffer.from(second, 'base64').subarray(-16)]).toString('base64');
    for (const text of [first, `${first};${longer}`, `${seed}`]) {
      const { opened, refused } = await open({ SECRET_MINE: text }, 'evil', pins);
      expect([opened, refused.length]).toEqual([[], 1]);
      expect(refused[0]?.why).toContain('belongs to acme/solver');
    }
  });

  it('of one RSA part alone are pinned the same', async () => {
    const pins = book();
    const plain = encryptRsa(rsa.key, Buffer.from('hunter2\n')).toString('base64');
    expect((await open({ SECRET_OLD: plain }, 'solver', pins)).opened).toEqual([{ name: 'OLD', value: 'hunter2' }]);
    expect((await open({ SECRET_OLD: plain }, 'docs', pins)).opened).toEqual([]);
  });

  it('are not pinned when they do not open', async () => {
    const pins = book();
    const foreign = await encryptSeed(rsaKey().publicPem, 'hunter2');
    const { refused } = await open({ SECRET_OLD: foreign }, 'solver', pins);
    expect(refused[0]?.why).toBe(
      'SECRET_OLD does not decrypt with this key: it was encrypted for another key, or was changed since.',
    );
    expect(pins.known.size).toBe(0);
  });

  it('are refused to a job that does not say its pipeline', async () => {
    const pins = book();
    const { opened, refused } = await open({ SECRET_OLD: seed, SECRET_NEW: sealed }, null, pins);
    expect([opened, refused.length, pins.known.size]).toEqual([[], 2, 0]);
  });

  it('go to one only of two pipelines that use one at the same moment', async () => {
    const pins = book();
    const both = await Promise.all(['a', 'b'].map((pipeline) => open({ SECRET_OLD: seed }, pipeline, pins)));
    expect(both.map(({ opened }) => opened.length).sort()).toEqual([0, 1]);
  });
});

it('one that does not open keeps no other from opening, and no message has a value', async () => {
  const found = await open({ SECRET_BAD: 'hunter2', SECRET_NEW: sealed, SECRET_OTHER: sealed, PATH: '/bin' }, 'solver', book());
  expect(found).toEqual({
    opened: [{ name: 'NEW', value: 'hunter3' }],
    refused: [
      { name: 'BAD', why: 'SECRET_BAD is not an encrypted value, or is damaged or cut off.' },
      { name: 'OTHER', why: 'SECRET_OTHER was encrypted as SECRET_NEW, and is used as SECRET_OTHER.' },
    ],
  });
});

it('a job cannot ask thousands of times what an RSA part alone opens to', async () => {
  const plain = (n: number) => encryptRsa(rsa.key, Buffer.from(`value ${n}\n`)).toString('base64');
  const of = (count: number) => Object.fromEntries(Array.from({ length: count }, (_, n) => [`SECRET_P${n}`, plain(n)]));
  expect((await open(of(10), 'solver', book())).opened).toHaveLength(10);
  const pins = book();
  const { opened, refused } = await open({ ...of(11), SECRET_NEW: sealed }, 'solver', pins);
  expect([opened.map(({ name }) => name), refused.length, pins.known.size]).toEqual([['NEW'], 11, 0]);
  expect(refused[0]?.why).toBe(
    'SECRET_P0 was not decrypted: a job may have at most 10 values in the oldest format, which has no ";"; encrypt them again with "onejob secret rotate".',
  );
});

it('a job cannot keep the host busy with thousands', async () => {
  const env = Object.fromEntries(Array.from({ length: mostSecrets + 3 }, (_, at) => [`SECRET_N${at}`, 'x']));
  const { refused } = await open(env, 'solver', book());
  expect(refused.filter(({ why }) => why.includes('may have at most 100 encrypted variables'))).toHaveLength(3);
});

describe('pins', () => {
  const ask = (format: SecretFormat, pins: string[], pipeline: string | null = 'solver') =>
    decidePin({ format, fingerprint: 'f', pins, organisation: 'acme', pipeline });
  it.each([
    ['a value that says itself what it is for', ask('sealed', []), 'open'],
    ['even of an unknown pipeline, which it will not fit', ask('sealed', [], null), 'open'],
    ['a first use', ask('seed', []), 'pin'],
    ['its own pipeline', ask('plain-rsa', ['acme/solver']), 'open'],
    ['one that was allowed', ask('seed', ['acme/docs', 'acme/solver']), 'open'],
    ['a whole organisation', ask('seed', ['acme/*']), 'open'],
    ['another organisation', ask('seed', ['evil/*']), { refused: expect.stringContaining('belongs to evil/*') }],
    ['another pipeline', ask('seed', ['acme/docs']), { refused: expect.stringContaining('belongs to acme/docs') }],
    [
      'a pipeline called as a pattern',
      ask('seed', [], '*'),
      { refused: expect.stringContaining('the pipeline name that the job gives is invalid') },
    ],
    ['one whose name would be typed', ask('seed', [], 'x; reboot'), { refused: expect.not.stringContaining('reboot') }],
    ['an unknown pipeline', ask('seed', ['*/*'], null), { refused: expect.stringContaining('does not say which pipeline') }],
  ])('%s', (_name, verdict, expected) => {
    expect(verdict).toEqual(expected);
  });
});

describe('pipelines', () => {
  it.each(['acme/solver', 'a/b', 'acme-1/solver.jl', 'acme/*', '*/*', 'acme/x_'])('%s', (text) =>
    expect(parsePipeline(text)).toBe(text),
  );
  it.each([
    '',
    'acme',
    '/',
    'acme/',
    '/solver',
    '*/solver',
    'Acme/Solver',
    'acme/sol*',
    'a/b/c',
    'acme/sol ver',
    'acme/\u001b[2J',
    `acme/${'x'.repeat(200)}`,
  ])('not %j', (text) => expect(parsePipeline(text)).toBeNull());
  it('cover what they name and no more', () => {
    expect(covers(['acme/solver'], 'acme', 'solver')).toBe(true);
    expect(covers(['acme/solver'], 'acme', 'solver2')).toBe(false);
    expect(covers(['acme/*'], 'acme2', 'solver')).toBe(false);
    expect(covers([], 'acme', 'solver')).toBe(false);
    expect(covers(['*/*'], null, 'solver')).toBe(false);
    // What a service calls a pipeline is not a pattern.
    expect(covers(['acme/solver'], 'acme', '*')).toBe(false);
  });
  it('are listed for people', () => {
    expect(listPipelines([])).toBe('no pipeline');
    expect(listPipelines(['a/b', 'a/c', '*/*'])).toBe('a/b, a/c and every pipeline');
  });
});
