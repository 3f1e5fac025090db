/** Facts about an Engine for `doctor`: one that answers, refuses, is silent, or does not exist. */
import { describe, expect, test } from 'vitest';
import { recipe, settings } from '../../../test/kit/docker-runtime.ts';
import { fakeEngine } from '../../../test/kit/fake-engine.ts';
import type { PoolConfig } from '../../config/config.ts';
import { infoAnswer } from '../engine/probe.ts';
import { engineFacts, lackFindings, podmanFindings } from './check.ts';

const never = new AbortController().signal;
type Asking = Pick<PoolConfig, 'devices' | 'runtime' | 'recipe'>;
const pool = (count: number, runtime: PoolConfig['runtime'] = null, way: Asking['recipe']['grant']['way'] = 'auto'): Asking =>
  ({ devices: { count }, runtime, recipe: { ...recipe, grant: { ...recipe.grant, way } } }) as Asking;

async function ask(name: string, answers: Readonly<Record<string, object | number>>, pools: readonly Asking[]) {
  const fake = fakeEngine(name, (path, _, reply) => {
    const answer = answers[path];
    if (typeof answer === 'number') reply.writeHead(answer).end('{"message":"no"}');
    else if (answer !== undefined) reply.end(JSON.stringify(answer));
  });
  await fake.start();
  try {
    const { endpoint } = fake;
    if (endpoint.kind !== 'unix') throw new Error('not a socket');
    return { facts: await engineFacts(pools, settings(endpoint.path), never), asked: fake.asked };
  } finally {
    await fake.stop();
  }
}

const version = { Version: '28.5.1', ApiVersion: '1.51' };

describe('an Engine', () => {
  test('reports its control groups and how it would grant devices', async () => {
    const info = { CgroupDriver: 'systemd', CDISpecDirs: ['/etc/cdi'], DiscoveredDevices: [{ ID: 'nvidia.com/gpu=GPU-1' }] };
    const { facts } = await ask('facts', { '/version': version, '/info': info }, [pool(0), pool(1)]);
    expect(facts).toEqual({ version: '28.5.1', cgroupDriver: 'systemd', way: 'cdi' });
  });

  test('without that information leaves it open; an unsupported way counts as no way', async () => {
    const old = { '/version': { Version: '20.10.24', ApiVersion: '1.41' }, '/info': { CgroupDriver: 7 } };
    expect((await ask('facts-old', old, [pool(1, 'docker')])).facts).toEqual({
      version: '20.10.24',
      cgroupDriver: null,
      way: 'request',
    });
    expect((await ask('facts-none', old, [pool(1, 'docker', 'runtime')])).facts).toMatchObject({ way: null });
  });

  test('that refuses gives no facts', async () => {
    expect((await ask('facts-no', { '/version': 500, '/info': 500 }, [pool(1)])).facts).toBeNull();
  });

  test('that does not exist gives no facts', async () => {
    expect(await engineFacts([pool(1)], settings('/nowhere/docker.sock'), never)).toBeNull();
  });

  test('is not asked if no pool gets devices from it', async () => {
    const { facts, asked } = await ask('facts-unused', { '/version': version, '/info': {} }, [pool(0), pool(1, 'process')]);
    expect([facts, asked.length]).toEqual([null, 0]);
  });

  test('that is silent is awaited only as long as the caller waits', async () => {
    const fake = fakeEngine('facts-silent', () => {});
    await fake.start();
    const stop = new AbortController();
    const { endpoint } = fake;
    if (endpoint.kind !== 'unix') throw new Error('not a socket');
    const facts = engineFacts([pool(1)], settings(endpoint.path), stop.signal);
    stop.abort();
    await expect(facts).rejects.toMatchObject({ name: 'AbortError' });
    await fake.stop();
  });
});

test('Podman is said to keep memory kills to itself only where it does', () => {
  expect(podmanFindings({ CgroupVersion: '2' })).toEqual([]);
  expect(podmanFindings({ CgroupVersion: '1' })).toMatchObject([{ level: 'warning', message: expect.stringContaining('137') }]);
});

describe('what an Engine lacks is told in words, by its own account', () => {
  const about = (info: object, podman = false) =>
    lackFindings(infoAnswer.parse(info), podman).map(({ level, message }) => `${level}: ${message}`);
  const plugins = { Log: ['json-file', 'local'], Volume: ['local'], Network: ['bridge', 'host', 'null'] };
  const whole = { OSType: 'linux', Plugins: plugins, SecurityOptions: ['name=seccomp,profile=default'] };

  test('and one that has all of it, or tells nothing of it, is not complained about', () => {
    expect([about(whole), about({}), about({ Plugins: { Log: null }, SecurityOptions: null })]).toEqual([[], [], []]);
    // Podman keeps output with a driver of its own.
    expect(about({ ...whole, Plugins: { ...plugins, Log: ['k8s-file', 'none'] } }, true)).toEqual([]);
  });

  test.each([
    [{ OSType: 'windows' }, /^error: This Engine runs no Linux containers/],
    [{ Plugins: { ...plugins, Log: ['json-file'] } }, /^error: This Engine has no log driver "local"/],
    [{ Plugins: { ...plugins, Volume: [] } }, /^error: This Engine has no volume driver "local"/],
    [{ Plugins: { ...plugins, Network: ['null'] } }, /^warning: This Engine has no network driver "bridge"/],
    [{ SecurityOptions: ['name=apparmor'] }, /^warning: This Engine uses no seccomp/],
  ])('%j', (info, said) => {
    expect(about({ ...whole, ...info })).toEqual([expect.stringMatching(said)]);
  });
});
