/** The recipe class of untrusted jobs on the real Engine: what their sandboxes lack, and that what waits is not wasted. */
import { randomBytes } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import type { JobSpec } from '../standins/buildkite/standin.ts';
import { containerOf, endOf, troubleOf, untilSays, works } from '../support/buildkite-days.ts';
import { untilAsking } from '../support/buildkite-host.ts';
import { buildkiteImages, ensureBuildkiteImages, lacksGit } from '../support/buildkite-images.ts';
import { containersOf, secretDay, seedValue } from '../support/buildkite-secrets.ts';
import { engineAt } from '../support/engine-http.ts';
import { slotOf, standbyOf } from '../support/look.ts';
import type { Home } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

const repo = 'https://github.com/acme/solver.git';
const fork = { repo, pullRequest: 7, pullRequestRepo: 'https://github.com/mallory/solver' } satisfies Omit<JobSpec, 'command'>;

interface Inspected {
  readonly HostConfig: {
    readonly Privileged: boolean;
    readonly PidMode: string;
    readonly NetworkMode: string;
    readonly CapAdd: readonly string[] | null;
    readonly SecurityOpt: readonly string[] | null;
  };
  readonly Mounts: readonly { readonly Source: string; readonly Destination: string; readonly RW: boolean }[];
}

async function inspect(here: Home, key = 'ci/1'): Promise<Inspected> {
  using engine = engineAt();
  return (await engine.ok('GET', `/containers/${await containerOf(here, key)}/json`)) as Inspected;
}

/** A network of the Engine that somebody made by hand. */
async function ownNetwork(): Promise<AsyncDisposable & { readonly name: string }> {
  using engine = engineAt();
  const name = `onejob-test-${randomBytes(4).toString('hex')}`;
  await engine.ok('POST', '/networks/create', { Name: name, Labels: { 'onejob-test': 'untrusted' } });
  return {
    name,
    async [Symbol.asyncDispose]() {
      using closing = engineAt();
      await closing.ok('DELETE', `/networks/${name}`);
    },
  };
}

async function standby(here: Home): Promise<string> {
  const waiting = () => standbyOf(here, 'ci/1');
  await expect.poll(waiting, { timeout: 20_000 }).not.toBe(null);
  return (await waiting()) ?? '';
}

const busy = async (here: Home): Promise<string | null> => {
  const { agent } = await slotOf(here, 'ci/1');
  return agent.state === 'busy' ? agent.agent : null;
};

describe.skipIf(lacks('docker', 'image', 'buildkiteAgent', 'openssl') || lacksGit() !== null)('an untrusted job', () => {
  beforeAll(async () => void (await ensureBuildkiteImages()));

  test('runs without what outlives it and what weakens its sandbox, in the image and network that are for it', async () => {
    await using network = await ownNetwork();
    const unsafe = 'unsafe: { pid_host: true, seccomp_unconfined: true }, cap_add: [SYS_PTRACE]';
    const trust = `trust: { image: "${buildkiteImages.git}", network: ${network.name} }`;
    await using day = await secretDay({ pool: `${unsafe}, ${trust}, caches: ["depot:/depot:DEPOT"]` });
    const { bench, here, out } = day;
    const { buildkite } = bench;
    const daemon = await here.up();
    const trusted = bench.hold('trusted', { repo });
    await untilSays(bench, trusted, /^began trusted$/m);
    const full = await inspect(here);
    expect(full.HostConfig).toMatchObject({
      PidMode: 'host',
      CapAdd: ['SYS_PTRACE'],
      SecurityOpt: expect.arrayContaining(['seccomp=unconfined']),
    });
    expect(full.Mounts.filter(({ RW }) => RW).map(({ Destination }) => Destination)).toEqual(
      expect.arrayContaining(['/depot', '/out']),
    );
    bench.go('trusted');
    await buildkite.jobEnded(trusted);

    await standby(here);
    const stranger = bench.hold('stranger', fork);
    await untilSays(bench, stranger, /^began stranger$/m);
    const bare = await inspect(here);
    expect(bare.HostConfig).toMatchObject({ Privileged: false, PidMode: '', NetworkMode: network.name });
    expect(bare.HostConfig.CapAdd ?? []).not.toContain('SYS_PTRACE');
    expect(bare.HostConfig.SecurityOpt ?? []).not.toContain('seccomp=unconfined');
    const places = bare.Mounts.map(({ Destination, Source, RW }) => ({ Destination, Source, RW }));
    expect(places.some(({ Destination }) => Destination === '/depot')).toBe(false);
    expect(places.find(({ Destination }) => Destination === '/out')).toEqual({ Destination: '/out', Source: out, RW: false });
    bench.go('stranger');
    expect((await buildkite.jobEnded(stranger)).exit).toBe(0);
    const inside = await bench.job(
      'git --version; echo "depot ${DEPOT-unset}"; touch /out/x || echo read-only; sed -n "s/^Seccomp:\t/seccomp /p" /proc/self/status',
      fork,
    );
    expect(inside.log).toMatch(/^git version/m);
    for (const line of ['depot unset', 'read-only', 'seccomp 2']) expect(inside.log).toContain(`\n${line}\n`);
    expect((await works(bench, { repo })).agent?.name).toBe(inside.agent?.name);
    await endOf(day, daemon);
  });

  test('is let into the sandbox that waits, where it would need no other', async () => {
    await using day = await secretDay();
    const { bench, here, configure } = day;
    // Nothing that is writable: else it would need another one.
    here.configure(bench.config());
    const daemon = await here.up();
    await untilAsking(bench);
    const waiting = await standby(here);
    const job = bench.hold('stranger', fork);
    await untilSays(bench, job, /^began stranger$/m);
    expect(await busy(here)).toBe(waiting);
    bench.go('stranger');
    expect((await bench.buildkite.jobEnded(job)).exit).toBe(0);
    await endOf(day, daemon);
    configure({});
  });

  test('that is cold ends at its time limit and by a cancel as others do', async () => {
    await using day = await secretDay({ pool: 'timeout: 15s, stop_grace: 8s' });
    const { bench, here } = day;
    const { buildkite } = bench;
    const daemon = await here.up();
    await untilAsking(bench);
    const waiting = await standby(here);
    const deaf = 'trap "echo told; exit 3" TERM; echo begun; while :; do sleep 0.1; done';
    const late = await bench.job(deaf, fork);
    expect(late).toMatchObject({ exit: -1, signal: 'SIGTERM', signalReason: 'agent_stop' });
    expect(late.log).toMatch(/^begun\n(.*\n)*told$/m);
    const cancelled = buildkite.queueJob({ command: deaf, ...fork });
    await untilSays(bench, cancelled, /^begun$/m);
    expect(await busy(here)).not.toBe(waiting);
    buildkite.cancel(cancelled);
    const job = await buildkite.jobEnded(cancelled);
    expect({ state: job.state, log: job.log }).toEqual({ state: 'canceled', log: expect.stringContaining('\ntold\n') });
    await expect.poll(() => containersOf(here), { timeout: 20_000 }).toHaveLength(1);
    await works(bench, { repo });
    expect(await troubleOf(here)).toBe('');
    await endOf(day, daemon);
  });

  test('is one of another branch or pipeline than the owner names, refused or without secrets as it is written', async () => {
    const patterns = 'pipelines: ["solver-*", "other/app"], branches: [main, "release/**"]';
    const poolOf = (others: string) => ({ pool: `trust: { ${patterns}, others: ${others} }` });
    await using day = await secretDay(poolOf('run-without-secrets'));
    const { bench, here, keys, configure } = day;
    let daemon = await here.up();
    const env = { SECRET_TOKEN: seedValue(keys.rsa, 'hunter2 hunter2') };
    const tell = 'echo "token is ${TOKEN-unset}"';
    const job = (pipeline: string, branch: string) => bench.job(tell, { env, repo, pipeline, branch });
    const said = async (pipeline: string, branch: string) => /^token is (.*)$/m.exec((await job(pipeline, branch)).log)?.[1];
    expect(await said('solver-core', 'release/1/2')).toBe('[REDACTED]');
    expect(await said('solver-core', 'main')).toBe('[REDACTED]');
    for (const [pipeline, branch] of [
      ['solver-core', 'mainly'],
      ['solver-core', 'release'],
      ['app', 'main'],
      ['solver', 'main'],
    ] as const)
      expect(await said(pipeline, branch)).toBe('unset');
    await daemon.stop();
    configure(poolOf('refuse'));
    daemon = await here.up();
    const refused = await Promise.all([job('solver-core', 'fix-it'), job('app', 'main')]);
    expect(refused.map(({ exit, signalReason }) => [exit, signalReason])).toEqual([
      [-1, 'stack_error'],
      [-1, 'stack_error'],
    ]);
    const [branch, pipeline] = refused.map(({ detail }) => detail);
    expect(branch).toContain('its branch fix-it does not match "trust.branches" (rule "trust.others: refuse")');
    expect(pipeline).toContain('its pipeline acme/app does not match "trust.pipelines" (rule "trust.others: refuse")');
    await endOf(day, daemon);
  });

  test('may have no network of none or the host: config says what to write', async () => {
    await using day = await secretDay();
    const { bench, here } = day;
    for (const [network, why] of [
      ['none', 'the agent of an untrusted job must reach the filter on this host; use "internet"'],
      ['host', 'an untrusted job could reach everything that listens on this host; use "internet"'],
    ]) {
      here.configure(bench.config({ pool: `trust: { network: ${network} }` }));
      const { code, stdout, stderr } = await here.cli(['config', 'check'], { env: { ONEJOB_CONFIG: `${here.dir}/config.yml` } })
        .ended;
      expect(code).toBe(1);
      expect((stdout + stderr).replaceAll(/\s+/g, ' ')).toContain(`is "${network}", but ${why}`);
    }
  });
});
