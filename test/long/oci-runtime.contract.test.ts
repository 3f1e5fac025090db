/** The contract with sandboxes that gVisor's runsc starts, on a real Engine. */
import { afterAll, beforeAll, describe } from 'vitest';
import { anOwner, recipe } from '../kit/docker-runtime.ts';
import { type ContractSubject, runtimeContract } from '../kit/runtime-contract/contract.ts';
import { type PrivateEngine, privateEngine } from '../support/dockerd.ts';
import { ensureImages } from '../support/images.ts';
import { lacks } from '../support/require.ts';
import { runsc } from '../support/runsc.ts';

/** What docs/runtimes/docker.md tells users of such runtimes, and what this Engine is not asked for. */
const exceptions: ContractSubject['exceptions'] = {
  'kill-tree': 'this host sees none of the processes in such a sandbox',
  reopened: 'another user of the sandbox cannot open its output by name',
  held: 'it has a /tmp in memory',
  door: 'the private Engine has a network of its own',
};

describe.skipIf(lacks('docker', 'dockerd', 'busybox', 'runsc'))('runsc', () => {
  let engine: PrivateEngine;
  beforeAll(async () => {
    engine = await privateEngine({ config: { runtimes: { runsc: { path: runsc, runtimeArgs: ['--overlay2=none'] } } } });
    await ensureImages(engine.socket);
  }, 60_000);
  afterAll(() => engine?.[Symbol.asyncDispose](), 60_000);

  runtimeContract('docker with runsc', async () => {
    const { make, leftovers } = anOwner(engine.socket);
    const runtime = await make();
    return {
      runtime,
      recipe: { ...recipe, network: 'default', ociRuntime: 'runsc' },
      remake: () => make(),
      stranger: () => anOwner(engine.socket).make(),
      leftovers,
      cleanup: async () => runtime.close(),
      exceptions,
    };
  });
});
