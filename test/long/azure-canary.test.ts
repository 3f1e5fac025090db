/**
 * S8: no credential comes near a job, nor to light anywhere else. A job takes what it can read of its container, and everything
 * that the Engine, the host's processes, the state directory and onejob's own outputs tell is searched, also while the service
 * refuses the credential in every way it has. The agent's own key is where it must be, which shows that the search sees.
 */
import { chmodSync, mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { type Fault, NAMED_FAULTS } from '../standins/azure-devops/standin.ts';
import {
  type AzureBench,
  azureBench,
  expectClean,
  troubleOf,
  untilIdle,
  untilRunning,
  works,
  writeToken,
} from '../support/azure.ts';
import { azureImages } from '../support/azure-images.ts';
import { engineTells, filesIn, found, type Needle, needlesOf, outputs, processes, prying } from '../support/azure-secrets.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

const image = azureImages.agent;

/** A folder for what the job finds, as `volumes` has it. */
function outFolder(here: Home): string {
  const folder = join(here.dir, 'out');
  mkdirSync(folder);
  chmodSync(folder, 0o777);
  return folder;
}

/** Everything outside of containers, right now. */
async function everywhere(here: Home): Promise<(readonly [string, Buffer | string])[]> {
  const { owner } = await here.api.status();
  const told = await outputs(here);
  return [...(await engineTells(owner, image)), ...processes(), ...filesIn(here.stateDir), ...told];
}

/** Ids of all agents that were online so far; the next one may be registered already. */
function onlineSoFar({ azure, pool }: AzureBench): number[] {
  return azure.agents(pool).flatMap(({ id, everOnline }) => (everOnline ? [id] : []));
}

/** Resolves once an agent is online that is not one of those, with the ids of all that were online so far. */
async function untilNext(bench: AzureBench, old: readonly number[]): Promise<number[]> {
  await expect.poll(() => onlineSoFar(bench).some((id) => !old.includes(id)), { timeout: 60_000, interval: 50 }).toBe(true);
  return onlineSoFar(bench);
}

/** Values of the private half of the key that the job found; without them the search would show nothing. */
function keysIn(files: string): Needle[] {
  const values = [...files.matchAll(/"(d|p|q|dp|dq|inverseQ)":"([A-Za-z0-9+/]+)=*"/g)];
  expect(values.length).toBeGreaterThanOrEqual(6);
  return values.map(([, name, value = '']) => ({ what: `${name} of the agent's key`, bytes: Buffer.from(value) }));
}

describe.skipIf(lacks('docker', 'root'))('the canary', () => {
  test.each(['manager', 'in-agent'])('a PAT with "registration: %s" is nowhere', async (registration) => {
    await using bench = await azureBench();
    const { azure, pool } = bench;
    await using here = await onejob();
    const out = outFolder(here);
    const config = bench.config({ service: `registration: ${registration}` }).replace(':/go"]', `:/go", "${out}:/out:rw"]`);
    here.configure(config);
    here.env.ONEJOB_CONFIG = join(here.dir, 'config.yml');
    const daemon = await here.up();
    const needles = needlesOf('the PAT', azure.pat);
    await untilIdle(bench);
    // Between registration and release, when the token of in-agent would be on its way.
    const early = await everywhere(here);
    const job = azure.queue(pool, { script: `${prying}\nuntil [ -e /go/pry ]; do sleep 0.1; done` });
    await untilRunning(job);
    const seen = onlineSoFar(bench);
    await expect.poll(() => azure.lines(job.requestId).join('\n'), { timeout: 30_000 }).toMatch(/pried \d+/);
    const during = await everywhere(here);
    bench.go('pry');
    expect((await job.finished).result).toBe('succeeded');
    // While an agent registers itself the token is in its sandbox: that is the next test's subject.
    const second = await untilNext(bench, seen);
    await works(bench);
    await untilNext(bench, [...seen, ...second]);
    const after = await everywhere(here);
    const pried = [...filesIn(out)];
    expect(found(needles, pried)).toEqual([]);
    const keys = keysIn(readFileSync(join(out, 'files'), 'utf8'));
    const log: [string, string] = ['daemon log', daemon.child.stdout + daemon.child.stderr];
    expect(found([...needles, ...keys], [...early, ...during, ...after, log])).toEqual([]);
    // In argv and environment of the agent neither.
    expect(
      found(
        keys,
        pried.filter(([path]) => !path.endsWith('/files')),
      ),
    ).toEqual([]);
    await daemon.stop();
    expect(found([...needles, ...keys], filesIn(here.stateDir))).toEqual([]);
    expectClean(bench);
  });

  test('with "registration: in-agent" the PAT is in the environment of config.sh while that registers, and nowhere else', async () => {
    await using bench = await azureBench();
    const { azure } = bench;
    await using here = await onejob({ config: bench.config({ service: 'registration: in-agent' }) });
    here.env.ONEJOB_CONFIG = join(here.dir, 'config.yml');
    // The first is the placeholder, which the manager makes.
    azure.faults.add({ kind: 'hang' }, { method: 'POST', route: 'agents', identity: 'pat', after: 1 });
    const daemon = await here.up();
    const needles = needlesOf('the PAT', azure.pat);
    await expect.poll(() => found(needles, processes())).not.toEqual([]);
    const all = await everywhere(here);
    const log: [string, string] = ['daemon log', daemon.child.stdout + daemon.child.stderr];
    const [place = '', ...others] = found(needles, [...all, log]);
    expect(others).toEqual([]);
    const [, pid = ''] = /^\/proc\/(\d+)\/environ: the PAT \(plain\)$/.exec(place) ?? [];
    const argv = all.find(([path]) => path === `/proc/${pid}/cmdline`)?.[1].toString();
    expect(argv).toMatch(/listener\.mjs\0configure\0/);
    await daemon.stop();
    expect(found(needles, [...processes(), ...filesIn(here.stateDir)])).toEqual([]);
    expectClean(bench);
  });

  test('an Entra application: neither its secret nor a token made with it', async () => {
    await using bench = await azureBench();
    const { azure, pool } = bench;
    await using here = await onejob();
    const out = outFolder(here);
    const { tenant, client, secret, authority } = azure.principal;
    writeToken(bench.tokenFile, secret);
    const credential = `principal: { tenant: ${tenant}, client: ${client}, secret: { file: ${bench.tokenFile} }, authority: "${authority}" }`;
    here.configure(bench.config({ credential }).replace(':/go"]', `:/go", "${out}:/out:rw"]`));
    here.env.ONEJOB_CONFIG = join(here.dir, 'config.yml');
    const daemon = await here.up();
    await untilIdle(bench);
    const job = azure.queue(pool, { script: prying });
    expect(await job.finished).toMatchObject({ result: 'succeeded', log: expect.stringMatching(/pried \d+/) });
    expect(azure.log.some(({ identity }) => identity === 'principal')).toBe(true);
    const well = azure.faults.add({ kind: 'rejected', shape: '401-json' }, { identity: 'principal' });
    await expect.poll(() => troubleOf(here)).not.toBe('');
    // Every bearer of the stand-in begins so; the agent's own, which the job may see, begins otherwise.
    const needles = [...needlesOf('the secret', secret), { what: 'a bearer', bytes: Buffer.from('entra.') }];
    const pried = [...filesIn(out)];
    const log: [string, string] = ['daemon log', daemon.child.stdout + daemon.child.stderr];
    expect(found([...needles, ...keysIn(readFileSync(join(out, 'files'), 'utf8'))], [...(await everywhere(here)), log])).toEqual(
      [],
    );
    expect(found(needles, pried)).toEqual([]);
    well();
    // A restart asks at once.
    await daemon.kill();
    const again = await here.up();
    // Its agent left while the secret was refused.
    await expect.poll(() => bench.left()).not.toContain(job.view().agent?.name);
    await again.stop();
    expectClean(bench);
  });

  test('what onejob says when the service refuses it, in every way, names no PAT', async () => {
    await using bench = await azureBench();
    const { azure, tokenFile } = bench;
    await using here = await onejob({ config: bench.config() });
    const daemon = await here.up();
    await untilIdle(bench);
    const needles = needlesOf('the first PAT', azure.pat);
    const echo: Fault = {
      kind: 'error',
      status: 400,
      typeKey: 'VssServiceException',
      message: `Bad header: Basic ${Buffer.from(`:${azure.pat}`).toString('base64')}, that is ${azure.pat}.`,
    };
    const names = ['rejected-203', 'rejected-302', 'rejected-401', 'rejected-bare', 'denied', 'broken', 'garbage', 'redirect'];
    const said: (readonly [string, Buffer | string])[] = [];
    for (const fault of [echo, ...names.map((name) => NAMED_FAULTS[name]?.fault)]) {
      if (fault === undefined) throw new Error('no such fault');
      const remove = azure.faults.add(fault, { identity: 'pat' });
      await expect.poll(() => troubleOf(here)).not.toBe('');
      said.push(...(await outputs(here, [['status', '--json'], ['doctor']])));
      remove();
      // Another token each time, as the one that was refused is not tried again for a while; a restart looks at once.
      const next = azure.addPat({ scopes: ['agentpools_manage', 'build'] });
      needles.push(...needlesOf(`a PAT (${fault.kind})`, next));
      writeToken(tokenFile, next);
      await expect.poll(() => troubleOf(here), { timeout: 60_000 }).toBe('');
    }
    await sleep(500);
    const all = [...said, ...(await everywhere(here)), ['daemon log', daemon.child.stdout + daemon.child.stderr] as const];
    expect(found(needles, all)).toEqual([]);
    // That the messages came at all.
    const text = said.map(([, output]) => output.toString().replaceAll(/\s+/g, ' ')).join('\n');
    expect(text).toContain('Bad header: Basic ***');
    expect(text).toContain('does not accept the token');
    expect(azure.strays).toEqual([]);
    await daemon.stop();
    expectClean(bench);
  });
});
