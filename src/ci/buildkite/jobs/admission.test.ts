/** With real keys: which secrets a job gets, and what happens to one that names others'. */
import { beforeAll, describe, expect, it } from 'vitest';
import { forkEnv, testPool, trustedEnv } from '../../../../test/kit/buildkite-manager.ts';
import { type AgeKey, ageKey, rsaKey } from '../../../../test/kit/secrets.ts';
import { OnejobError } from '../../../base/errors.ts';
import type { PinStore } from '../../../secrets/job-secrets.ts';
import { parseKeys, type SecretKeys } from '../../../secrets/keys.ts';
import { seal } from '../../../secrets/sealed-format.ts';
import { encryptSeed } from '../../../secrets/seed-format.ts';
import { admit } from './admission.ts';

const trust = testPool().trust;
const rsa = rsaKey();
let age: AgeKey;
let keys: SecretKeys;
beforeAll(async () => {
  const made = await ageKey();
  age = made.key;
  keys = await parseKeys(`${made.text}\n${rsa.pem}`);
});

/** Pins as the store has them. */
function book(): PinStore & { readonly pins: Map<string, string[]> } {
  const pins = new Map<string, string[]>();
  return {
    pins,
    of: (fingerprint) => pins.get(fingerprint) ?? [],
    first(fingerprint, pipeline) {
      if (!pins.has(fingerprint)) pins.set(fingerprint, [pipeline]);
      return pins.get(fingerprint) ?? [];
    },
  };
}

const parts = (more: Partial<Parameters<typeof admit>[1]> = {}) => ({ trust, keys: async () => keys, pins: book(), ...more });
const job = (env: Readonly<Record<string, string>>) => ({ id: 'job-1', env });
const seed = (value: string) => encryptSeed(rsa.key, value);
const sealed = (value: string, name = 'TOKEN', pipelines = ['acme/app']) => seal(age, { name, pipelines, value });

it('opens old and new values of a trusted job, by the names of their variables', async () => {
  const env = { ...trustedEnv, SECRET_OLD: await seed('old value'), SECRET_TOKEN: await sealed('new value'), PLAIN: 'x' };
  const admission = await admit(job(env), parts());
  expect(admission).toMatchObject({ kind: 'run', trusted: true });
  expect(admission.kind === 'run' && [...admission.secrets].sort((a, b) => a.name.localeCompare(b.name))).toEqual([
    { name: 'OLD', value: 'old value' },
    { name: 'TOKEN', value: 'new value' },
  ]);
});

it("opens nothing of a fork's job, and does not even read the key", async () => {
  const read = () => Promise.reject(new Error('the key was read'));
  const env = { ...forkEnv, SECRET_TOKEN: await sealed('new value') };
  const other = { ...trust, forks: 'run-without-secrets' } as const;
  expect(await admit(job(env), parts({ trust: other, keys: read }))).toMatchObject({
    kind: 'run',
    trusted: false,
    secrets: [],
    why: expect.stringMatching(/^The job runs without secrets, and without the caches of its pool: .*stranger/),
  });
  expect(await admit(job(env), parts({ keys: read }))).toMatchObject({ kind: 'refused' });
});

it("says in a fork's job that it has no engine for containers, if others of the pool have one", async () => {
  const why = async (containers: boolean, rule: 'refuse' | 'allow') => {
    const rules = { ...trust, forks: 'run-without-secrets', containers: rule } as const;
    const admission = await admit(job(forkEnv), parts({ trust: rules, containers }));
    return admission.kind === 'run' ? admission.why : null;
  };
  const without = expect.stringMatching(/\nIt has no engine for containers \(rule "trust\.containers: refuse"\)\.$/);
  expect(await why(true, 'refuse')).toEqual(without);
  expect(await why(true, 'allow')).not.toEqual(without);
  expect(await why(false, 'refuse')).not.toEqual(without);
});

it('leaves variables of that name alone where config has no key', async () => {
  const env = { ...trustedEnv, SECRET_TOKEN: 'not encrypted at all' };
  expect(await admit(job(env), parts({ keys: async () => null }))).toMatchObject({ kind: 'run', trusted: true, secrets: [] });
});

it('refuses a job whose secrets are encrypted where config has no key, and only a trusted one', async () => {
  const without = parts({ keys: async () => null });
  const env = { ...trustedEnv, SECRET_A: await sealed('hunter2'), SECRET_B: await seed('hunter2'), SECRET_C: 'plain text' };
  const admission = await admit(job(env), without);
  expect(admission).toMatchObject({
    kind: 'refused',
    reason: ['SECRET_A', 'SECRET_B']
      .map((variable) => `${variable} is encrypted, but the config of the host has no "secrets.key" to decrypt it.`)
      .join('\n'),
  });
  const cut = { ...trustedEnv, SECRET_A: env.SECRET_A.slice(0, -9) };
  expect(await admit(job(cut), without)).toMatchObject({ kind: 'refused' });
  const forks = { ...trust, forks: 'run-without-secrets' } as const;
  expect(await admit(job({ ...env, ...forkEnv }), { ...without, trust: forks })).toMatchObject({ kind: 'run', trusted: false });
});

describe('a job is refused, with the name of the variable and nothing of its value,', () => {
  const refusal = async (env: Readonly<Record<string, string>>, more = parts()): Promise<string> => {
    const admission = await admit(job({ ...trustedEnv, ...env }), more);
    if (admission.kind !== 'refused') throw new Error('it was not refused');
    return admission.reason;
  };

  it("for another pipeline's new value", async () => {
    const reason = await refusal({ SECRET_TOKEN: await sealed('hunter2', 'TOKEN', ['acme/other']) });
    expect(reason).toContain('SECRET_TOKEN');
    expect(reason).not.toContain('hunter2');
  });

  it('for a new value under another name', async () => {
    expect(await refusal({ SECRET_OTHER: await sealed('hunter2') })).toContain('SECRET_OTHER');
  });

  it("for another pipeline's old value, which was pinned by its first use", async () => {
    const pins = book();
    const old = await seed('hunter2');
    expect(await admit(job({ ...trustedEnv, BUILDKITE_PIPELINE_SLUG: 'first', SECRET_A: old }), parts({ pins }))).toMatchObject({
      kind: 'run',
      secrets: [{ name: 'A', value: 'hunter2' }],
    });
    const reason = await refusal({ SECRET_A: old }, parts({ pins }));
    expect(reason).toContain('SECRET_A');
    expect(reason).toContain('acme/first');
    expect(reason).not.toContain('hunter2');
  });

  it('for values that were cut or changed, each of them', async () => {
    const [cut, changed] = [(await seed('hunter2')).slice(0, -9), `${(await sealed('hunter2')).slice(0, -6)}AAAAAA`];
    const reason = await refusal({ SECRET_CUT: cut, SECRET_TOKEN: changed });
    expect(reason.split('\n')).toHaveLength(2);
    expect(reason).toContain('SECRET_CUT');
    expect(reason).toContain('SECRET_TOKEN');
    expect(reason).not.toContain('hunter2');
  });
});

it('does not rule where the key cannot be read, which is not a fault of the job; one without secrets does not need it', async () => {
  const keysGone = () => Promise.reject(new OnejobError('E_SECRET', 'The key file is gone.', { hint: 'Put it back.' }));
  const needy = job({ ...trustedEnv, SECRET_TOKEN: await sealed('new value') });
  await expect(admit(needy, parts({ keys: keysGone }))).rejects.toMatchObject({ code: 'E_SECRET' });
  expect(await admit(job(trustedEnv), parts({ keys: keysGone }))).toMatchObject({ kind: 'run', trusted: true, secrets: [] });
});

it('knows a trusted job by its pipeline and branch, too', async () => {
  const env = { ...trustedEnv, SECRET_TOKEN: await sealed('new value') };
  const narrow = { ...trust, pipelines: ['app'], branches: ['release/*'] };
  expect(await admit(job(env), parts({ trust: narrow }))).toMatchObject({
    kind: 'refused',
    reason: expect.stringContaining('trust.branches'),
  });
  const named = { ...env, BUILDKITE_BRANCH: 'release/1', BUILDKITE_COMMIT: 'HEAD' };
  expect(await admit(job(named), parts({ trust: narrow }))).toMatchObject({ trusted: true });
});
