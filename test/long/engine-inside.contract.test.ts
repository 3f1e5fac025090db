/** The contract with sandboxes in engines of their own: the same runtime on an engine in a container of another. */
import { readdirSync, statSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { pack } from 'tar-stream';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Recipe } from '../../src/ports/runtime.ts';
import { engineUsers } from '../../src/runtimes/docker/engine-program.ts';
import { WithEngines } from '../../src/runtimes/docker/with-engines.ts';
import { uidOf } from '../../src/runtimes/uids.ts';
import { anOwner, recipe } from '../kit/docker-runtime.ts';
import { type ContractSubject, runtimeContract, specOf } from '../kit/runtime-contract/contract.ts';
import { type PrivateEngine, privateEngine } from '../support/dockerd.ts';
import { clientImage, loadEngineBase, makeEngineImage } from '../support/engine-base.ts';
import { ensureImages, images } from '../support/images.ts';
import { lacks } from '../support/require.ts';

/** What Podman cannot keep, and what engines of agents do not have yet. */
const exceptions: ContractSubject['exceptions'] = {
  held: 'files of a sandbox go with its engine, and "config check" refuses "hold_failed"',
  frame: "it ends a gate's input with the first connection that wrote to it: after a torn frame another standby takes the script",
};

describe.skipIf(lacks('docker', 'dockerd', 'busybox', 'engineBase'))('engines of agents', () => {
  let engine: PrivateEngine;
  let image = '';
  beforeAll(async () => {
    engine = await privateEngine();
    await ensureImages(engine.socket);
    await loadEngineBase(engine.api);
    image = await makeEngineImage(engine.api);
  }, 300_000);
  afterAll(() => engine?.[Symbol.asyncDispose](), 60_000);

  test('one that cannot start says why', async () => {
    const dir = await mkdtemp(join(tmpdir(), 'oje-'));
    const owner = anOwner(engine.socket);
    const runtime = new WithEngines(await owner.make(), dir);
    const { signal } = new AbortController();
    // Its image is there for all engines then.
    const good = specOf({ ...recipe, containers: { image } });
    await runtime.prepare(good, () => {}, signal);
    await runtime.remove(good.agent);
    // It has Perl, but nothing of an engine.
    const spec = specOf({ ...recipe, containers: { image: 'debian:trixie-slim' } });
    const message = `Cannot start agent ${spec.name}: the engine for its containers ended at once: the image has no user for the engine.`;
    await expect(runtime.prepare(spec, () => {}, signal)).rejects.toMatchObject({ code: 'E_ENGINE_FAILED', message });
    await runtime.sweep(signal);
    expect(await owner.leftovers()).toEqual([]);
    runtime.close();
    await rm(dir, { recursive: true, force: true });
  }, 120_000);

  test('a job has ids that no other one has, in its sandbox and in its containers, and those of the other trust their own volumes of images', async () => {
    const dir = await mkdtemp(join(tmpdir(), 'oje-'));
    const owner = anOwner(engine.socket);
    const runtime = new WithEngines(await owner.make(), dir);
    const { signal } = new AbortController();
    const ready = { images: [images.base], pull: 'never', logins: null } as const;
    const look = 'sed "s/ \\+/ /g" /proc/self/uid_map';
    const script = `touch mine; ls -n mine given | cut -d " " -f 3-; ${look}; docker run --rm ${images.base} ${look}`;
    const lookAs = async (containers: NonNullable<Recipe['containers']>) => {
      const spec = specOf({ ...recipe, image: clientImage, containers });
      await runtime.prepare(spec, () => {}, signal);
      const files = pack();
      files.entry({ name: 'given' }, 'x');
      files.finalize();
      await runtime.putFiles(spec.agent, Readable.from(files), signal);
      const shell = await runtime.exec(spec.agent, ['sh', '-c', script], signal);
      let said = '';
      for await (const { bytes } of shell.output) said += Buffer.from(bytes);
      expect([await shell.ended, said]).toEqual([0, expect.any(String)]);
      const file = join(engine.dataRoot, 'volumes', await workspaceOf(spec.agent), '_data/given');
      const { uid } = statSync(file);
      return { agent: spec.agent, said, uid };
    };
    const workspaceOf = async (agent: string) => {
      const filters = JSON.stringify({ label: [`onejob.agent=${agent}`] });
      const [found] = (await engine.api.ok('GET', `/containers/json?${new URLSearchParams({ filters })}`)) as readonly {
        readonly Mounts: readonly { readonly Name: string; readonly Destination: string }[];
      }[];
      return found?.Mounts.find(({ Destination }) => Destination === '/workspace')?.Name ?? '';
    };
    const mapFrom = (first: number) => ` 0 ${first} 1\n 1 ${first + 1} 65536\n`;
    const range = engineUsers.untrusted.first - engineUsers.trusted.first;
    const given: number[] = [];
    const agents: string[] = [];
    for (const untrusted of [false, true, false]) {
      const { agent, said, uid } = await lookAs({ image, ready, ...(untrusted && { untrusted }) });
      expect(said).toContain(`${mapFrom(uid)}${mapFrom(uid)}`);
      expect(((uid - engineUsers.trusted.first) / range) % 2).toBe(untrusted ? 1 : 0);
      expect(await uidOf(join(dir, agent))).toBe(uid);
      given.push(uid);
      agents.push(agent);
    }
    expect(new Set([...given, engineUsers.trusted.first, engineUsers.untrusted.first]).size).toBe(5);
    for (const agent of agents) {
      await runtime.remove(agent);
      expect(await uidOf(join(dir, agent))).toBe(null);
    }
    const volumes = readdirSync(join(engine.dataRoot, 'volumes')).filter((name) => name.includes(owner.owner));
    expect(volumes.map((name) => name.replace(/-\w{12}$/, '')).sort()).toEqual(
      ['images', 'images', 'untrusted-images', 'untrusted-images'].map((name) => `onejob-${owner.owner}-${name}`),
    );
    await runtime.sweep(signal);
    expect(await owner.leftovers()).toEqual([]);
    runtime.close();
    await rm(dir, { recursive: true, force: true });
  }, 240_000);

  runtimeContract('docker, in an engine of its own', async () => {
    const dir = await mkdtemp(join(tmpdir(), 'oje-'));
    const { make, leftovers } = anOwner(engine.socket);
    const remake = async () => new WithEngines(await make(), dir);
    const runtime = await remake();
    return {
      runtime,
      recipe: { ...recipe, containers: { image } },
      remake,
      stranger: () => anOwner(engine.socket).make(),
      leftovers,
      cleanup: async () => {
        runtime.close();
        await rm(dir, { recursive: true, force: true });
      },
      exceptions,
    };
  });
});
