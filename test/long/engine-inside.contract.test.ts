/** The contract with sandboxes in engines of their own: the same runtime on an engine in a container of another. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe } from 'vitest';
import { WithEngines } from '../../src/runtimes/docker/with-engines.ts';
import { anOwner, recipe } from '../kit/docker-runtime.ts';
import { type ContractSubject, runtimeContract } from '../kit/runtime-contract/contract.ts';
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
