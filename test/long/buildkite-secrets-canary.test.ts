/**
 * S8 for encrypted values: while one job has a secret, another takes what it can read of its own sandbox; and everything that the Engine, the host's processes, the state directory and onejob's own outputs tell is searched.
 * The job that has the value is where it must be found, which shows that the search sees.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { engineTells, filesIn, found, type Needle, outputs, processes, prying } from '../support/azure-secrets.ts';
import { expectClean } from '../support/buildkite.ts';
import { containerOf, endOf, untilRunning, untilSays } from '../support/buildkite-days.ts';
import { untilAsking } from '../support/buildkite-host.ts';
import { type SecretDay, sealedValue, secretDay, seedValue } from '../support/buildkite-secrets.ts';
import { engineAt } from '../support/engine-http.ts';
import { slotOf } from '../support/look.ts';
import { lacks } from '../support/require.ts';

function needlesOf(what: string, value: string): Needle[] {
  const forms = {
    plain: value,
    base64: Buffer.from(value).toString('base64').replace(/=+$/, ''),
    hex: Buffer.from(value).toString('hex'),
  };
  return Object.entries(forms).map(([form, text]) => ({ what: `${what} (${form})`, bytes: Buffer.from(text) }));
}

/** Each line of the key file that is part of a private key. */
function keyNeedles(text: string): Needle[] {
  const lines = text.split('\n').filter((line) => line.length >= 40 && !line.startsWith('#') && !line.startsWith('-----'));
  expect(lines.length).toBeGreaterThan(20);
  return lines.flatMap((line, n) => needlesOf(`line ${n} of the private key`, line));
}

async function firstOf(container: string): Promise<number> {
  using engine = engineAt();
  const { State } = (await engine.ok('GET', `/containers/${container}/json`)) as { readonly State: { readonly Pid: number } };
  return State.Pid;
}

/** Everything outside of the sandbox `but`. */
async function everywhere({ here }: SecretDay, but: string | null): Promise<(readonly [string, Buffer | string])[]> {
  const { owner } = await here.api.status();
  const told = [...(await outputs(here)), ...(await engineTells(owner, 'debian:stable-slim'))];
  return [...told, ...processes(but === null ? null : await firstOf(but)), ...filesIn(here.stateDir)];
}

describe.skipIf(lacks('docker', 'image', 'buildkiteAgent', 'openssl', 'root'))('the canary', () => {
  test("another job's secret and the private key are nowhere but in the job that has the one", async () => {
    await using day = await secretDay({ agents: 2 });
    const { bench, here, keys, out } = day;
    const { buildkite } = bench;
    const daemon = await here.up();
    await untilAsking(bench);
    const values = { A: 'canary-of-the-old-format-5f1c', B: 'canary-that-was-sealed-9d2e' };
    const env = {
      SECRET_A: seedValue(keys.rsa, values.A),
      SECRET_B: await sealedValue(here, keys, { name: 'B', value: values.B }),
    };
    const theirs = bench.hold('victim', { env });
    await untilSays(bench, theirs, /^began victim$/m);
    const slots = await Promise.all(['ci/1', 'ci/2'].map((key) => slotOf(here, key)));
    const slot = slots.find(({ agent }) => agent.state === 'busy')?.key;
    const victim = await containerOf(here, slot);
    const mine = 'value-of-the-prying-job-itself';
    const pry = buildkite.queueJob({
      command: ['set +e', prying, 'echo all asked; until [ -e /go/pry ]; do sleep 0.1; done'].join('\n'),
      env: { SECRET_MINE: await sealedValue(here, keys, { name: 'MINE', value: mine }) },
    });
    await untilRunning(bench, pry);
    await untilSays(bench, pry, /^all asked$/m);
    const secrets = Object.entries(values).flatMap(([name, value]) => needlesOf(name, value));
    const needles = [...secrets, ...keyNeedles(keys.text), ...needlesOf('the token', buildkite.token)];
    const during = await everywhere(day, victim);
    expect(
      found(
        secrets,
        (await everywhere(day, null)).filter(([path]) => path.startsWith('/proc')),
      ).length,
    ).toBeGreaterThan(1);
    bench.go('pry');
    const job = await buildkite.jobEnded(pry);
    expect(job.log).toMatch(/pried \d{5,}/);
    bench.go('victim');
    const other = await buildkite.jobEnded(theirs);
    await daemon.stop();
    const log: [string, string] = ['daemon log', daemon.child.stdout + daemon.child.stderr];
    const logs: [string, Buffer][] = [
      ['log of the job', job.rawLog],
      ['log of the other', other.rawLog],
    ];
    expect(found(needles, [...during, ...filesIn(here.stateDir), ...filesIn(out), log, ...logs])).toEqual([]);
    // It found its own.
    expect(readFileSync(join(out, 'env'), 'utf8')).toContain(`MINE=${mine}\n`);
    await endOf(day, daemon);
    expectClean(bench);
  });
});
