/** Encrypted values of pipelines from end to end: who gets them, who does not, and what they are told. */
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { mostSecrets } from '../../src/secrets/job-secrets.ts';
import type { JobSpec, JobView } from '../standins/buildkite/standin.ts';
import { endOf, works } from '../support/buildkite-days.ts';
import { makeKeys, rsaValue, type SecretDay, sealedValue, secretDay, seedValue, well } from '../support/buildkite-secrets.ts';
import { lacks } from '../support/require.ts';

/** What no shell script and no log may change, or cut. */
const awkward = 'first line  with two  spaces\n\ttabbed "quoted" $HOME `x` \\n * %s\n\nübergroß 模型 🔑 last';

/** What a job got of `names`, byte for byte; null for what it did not get. */
async function got(
  { bench, out }: SecretDay,
  names: readonly string[],
  spec: Omit<JobSpec, 'command'>,
): Promise<{ readonly job: JobView; readonly values: (string | null)[] }> {
  const command = `printenv -0 >/out/env; for n in ${names.join(' ')}; do printenv $n || true; done`;
  const job = await bench.job(command, spec);
  expect([0, -1], job.log).toContain(job.exit);
  const variables = job.exit === 0 ? readFileSync(join(out, 'env'), 'utf8').split('\0') : [];
  const gotAs = (name: string) => variables.find((each) => each.startsWith(`${name}=`))?.slice(name.length + 1) ?? null;
  return { job, values: names.map(gotAs) };
}

/** The job was refused with this in its log, or beside it where it never had an agent, and nothing of it ran. */
function expectRefused(job: JobView, reason: string | RegExp, signalReason = 'stack_error'): void {
  expect({ exit: job.exit, signalReason: job.signalReason, log: `${job.log}${job.detail ?? ''}` }).toEqual({
    exit: -1,
    signalReason,
    log: typeof reason === 'string' ? expect.stringContaining(reason) : expect.stringMatching(reason),
  });
  expect(job.log).not.toContain('Running commands');
}

describe.skipIf(lacks('docker', 'image', 'buildkiteAgent', 'openssl'))('encrypted values', () => {
  test('of all formats reach a trusted job as they were, are hidden in its log, and keep their own variables', async () => {
    await using day = await secretDay();
    const { here, keys } = day;
    const daemon = await here.up();
    const sealed = `${awkward} sealed\n`;
    const env = {
      SECRET_SEED: seedValue(keys.rsa, `${awkward} seed`),
      SECRET_PLAIN: rsaValue(keys.rsa, 'hunter2 hunter2\n'),
      SECRET_SEALED: await sealedValue(here, keys, { name: 'SEALED', value: sealed }),
      // None: it begins otherwise, which the old hook did not mind.
      MY_SECRET_KEY: 'as it was',
    };
    const { job, values } = await got(day, ['SEED', 'PLAIN', 'SEALED', ...Object.keys(env), 'T_KEY'], { env });
    expect(values).toEqual([`${awkward} seed`, 'hunter2 hunter2', sealed, ...Object.values(env), null]);
    // The fourth by its name, which the agent has a pattern for.
    expect(job.log.match(/\[REDACTED\]/g)).toHaveLength(4);
    for (const part of ['first line', 'tabbed', 'übergroß', 'hunter2']) expect(job.log).not.toContain(part);
    await endOf(day, daemon);
  });

  test('are for the pipeline that was first or is named in them; others are told what to type, which holds at once', async () => {
    await using day = await secretDay();
    const { here, keys } = day;
    const daemon = await here.up();
    const old = { SECRET_OLD: seedValue(keys.rsa, 'old value') };
    const sealed = { SECRET_NEW: await sealedValue(here, keys, { name: 'NEW', value: 'new value' }) };
    const names = ['OLD', 'NEW', 'OTHER'];
    expect((await got(day, names, { env: { ...old, ...sealed } })).values).toEqual(['old value', 'new value', null]);

    const other = await got(day, names, { env: old, pipeline: 'other' });
    expectRefused(other.job, 'SECRET_OLD is in the old format and belongs to acme/demo');
    const command = /type "onejob (secret allow [^"]+)"/.exec(other.job.detail ?? '')?.[1];
    expect(command).toMatch(/^secret allow --pipeline acme\/other [0-9a-f]{32}$/);
    expect(await well(here.cli((command ?? '').split(' ')))).toContain('acme/other');
    expect((await got(day, names, { env: old, pipeline: 'other' })).values[0]).toBe('old value');
    expect((await got(day, names, { env: old })).values[0]).toBe('old value');

    expectRefused((await got(day, names, { env: sealed, pipeline: 'other' })).job, /SECRET_NEW .*acme\/demo/);
    expectRefused((await got(day, names, { env: { SECRET_OTHER: sealed.SECRET_NEW } })).job, /SECRET_OTHER .*NEW/);
    // A changed second half would open for anyone who pairs it with a known first one: pinned by the first.
    const swapped = `${old.SECRET_OLD.split(';')[0]};${seedValue(keys.rsa, 'x').split(';')[1]}`;
    expectRefused((await got(day, names, { env: { SECRET_OLD: swapped }, pipeline: 'third' })).job, 'belongs to acme/demo and');

    // Pins are in the store: a restart keeps them, and another organisation's pipeline of that name is another one.
    await daemon.stop();
    const again = await here.up();
    expectRefused((await got(day, names, { env: old, pipeline: 'third' })).job, 'belongs to acme/demo and acme/other');
    const evil = { ...old, BUILDKITE_ORGANIZATION_SLUG: 'evil' };
    expectRefused((await got(day, names, { env: evil })).job, 'allow --pipeline evil/demo');
    await endOf(day, again);
  });

  test('that were damaged, or are not secrets, are named with the reason, and nothing of them is anywhere', async () => {
    await using day = await secretDay();
    const { here, keys, bench } = day;
    const daemon = await here.up();
    const stranger = await makeKeys(here.dir, 'stranger');
    const seed = seedValue(keys.rsa, 'sesame open sesame');
    const sealed = await sealedValue(here, keys, { name: 'A', value: 'sesame open sesame' });
    const strange = await sealedValue(here, stranger, { name: 'A', value: 'sesame open sesame' });
    const bad = [
      ...['sesame open sesame', '', ';', `${seed};`, seed.slice(0, -9), seed.slice(0, 340), `x${seed.slice(1)}`],
      ...[seed.split(';')[1] ?? '', `${seed.slice(0, -8)}AAAAAAA=`, sealed.slice(0, -9), sealed.slice(0, 20), 'oj1:', 'oj9:aa:bb'],
      ...[`${sealed.slice(0, -4)}AAAA`, strange, seedValue(stranger.rsa, 'sesame open sesame'), 'a'.repeat(100_000)],
    ];
    const env = Object.fromEntries(bad.map((text, n) => [`SECRET_A${n}`, text]));
    const { job } = await got(day, ['A'], { env: { ...env, SECRET_GOOD: seedValue(keys.rsa, 'good value') } });
    expectRefused(job, 'onejob refused this job: ');
    const lines = (job.detail ?? '').trim().split('\n');
    expect(lines.map((line) => /SECRET_A\d+ (is|was|does|has) .*\.$/.test(line))).toEqual(bad.map(() => true));
    const said = [job.detail ?? '', daemon.child.stdout, daemon.child.stderr];
    for (const text of said) {
      expect(text).not.toMatch(/sesame|good value/);
      for (const each of bad.filter((one) => one.length > 8)) expect(text).not.toContain(each.slice(0, 30));
    }
    await works(bench);
    await endOf(day, daemon);
  });

  test('are opened a hundred to a job, and not one more', async () => {
    await using day = await secretDay();
    const { here, keys, bench } = day;
    const daemon = await here.up();
    const value = seedValue(keys.rsa, 'the same everywhere');
    const env = (count: number) => Object.fromEntries(Array.from({ length: count }, (_, n) => [`SECRET_N${n + 1}`, value]));
    const { job, values } = await got(day, ['N1', 'N50', `N${mostSecrets}`], { env: env(mostSecrets) });
    expect({ exit: job.exit, values }, job.log).toEqual({
      exit: 0,
      values: Array.from({ length: 3 }, () => 'the same everywhere'),
    });
    expectRefused(
      (await got(day, ['N1'], { env: env(mostSecrets + 1) })).job,
      `was not decrypted: a job may have at most ${mostSecrets} encrypted variables`,
    );
    await works(bench);
    await endOf(day, daemon);
  });

  test('wait for a key that is away, wrong or changed only where there are some; a new file holds for the next job', async () => {
    await using day = await secretDay();
    const { here, keys, bench } = day;
    const daemon = await here.up();
    const later = await makeKeys(here.dir, 'later');
    const old = { SECRET_A: seedValue(keys.rsa, 'old key value') };
    const next = { SECRET_B: await sealedValue(here, later, { name: 'B', value: 'new key value' }) };
    const names = ['A', 'B'];
    expect((await got(day, names, { env: old })).values).toEqual(['old key value', null]);
    expectRefused((await got(day, names, { env: next })).job, 'SECRET_B');

    const broken: readonly (readonly [() => void, RegExp])[] = [
      [() => rmSync(keys.file), /missing|does not exist|not there|no such/i],
      [() => writeFileSync(keys.file, ''), /empty/],
      [() => writeFileSync(keys.file, 'AGE-SECRET-KEY-1SURPRISE\n'), /line 1/],
      [
        () => {
          rmSync(keys.file);
          mkdirSync(keys.file);
        },
        /directory|no file|not a/,
      ],
    ];
    for (const [breaks, why] of broken) {
      breaks();
      const { job } = await got(day, names, { env: old });
      expectRefused(job, why);
      expect(job.log).not.toContain('SURPRISE');
      // Nothing of it needs the key.
      await works(bench);
      expect((await here.cli(['doctor']).ended).stdout).toContain(keys.file);
    }
    rmSync(keys.file, { recursive: true });

    writeFileSync(keys.file, `${later.text}${keys.text}`, { mode: 0o644 });
    expect((await got(day, names, { env: { ...old, ...next } })).values).toEqual(['old key value', 'new key value']);
    expect((await here.cli(['doctor']).ended).stdout).toContain(`chmod 600 ${keys.file}`);
    writeFileSync(keys.file, later.text);
    expectRefused((await got(day, names, { env: old })).job, 'SECRET_A');
    await endOf(day, daemon);
  });

  test('reach a trusted job where none other runs, and no other', async () => {
    await using day = await secretDay({ pool: 'trust: { forks: refuse, others: refuse }' });
    const { here, keys, bench } = day;
    const daemon = await here.up();
    const env = {
      SECRET_A: seedValue(keys.rsa, `${awkward} seed`),
      SECRET_B: await sealedValue(here, keys, { name: 'B', value: `${awkward} sealed` }),
    };
    const { job, values } = await got(day, ['A', 'B'], { env });
    expect(values).toEqual([`${awkward} seed`, `${awkward} sealed`]);
    expect(job.log).not.toContain('tabbed');
    expectRefused((await got(day, ['A'], { env: { SECRET_A: env.SECRET_B } })).job, 'SECRET_A was encrypted as SECRET_B');
    const fork = { pullRequest: 7, pullRequestRepo: 'https://github.com/mallory/demo' };
    expectRefused((await got(day, ['A'], { env, ...fork })).job, 'rule "trust.forks: refuse"');
    await works(bench);
    await endOf(day, daemon);
  });
});
