/** The contract with sandboxes in engines of their own: the same runtime on an engine in a container of another. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { WithEngines } from '../../src/runtimes/docker/with-engines.ts';
import { anOwner, recipe } from '../kit/docker-runtime.ts';
import { type ContractSubject, runtimeContract, specOf } from '../kit/runtime-contract/contract.ts';
import { type PrivateEngine, privateEngine } from '../support/dockerd.ts';
import { loadEngineBase, makeEngineImage } from '../support/engine-base.ts';
import { ensureImages } from '../support/images.ts';
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
