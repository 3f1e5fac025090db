import { describe } from 'vitest';
import { ensureImages } from '../../../test/support/images.ts';
import { lacks } from '../../../test/support/require.ts';
import { runtimeContract } from '../contract.ts';
import { anOwner, recipe } from './testing.ts';

const subject = (changes: Partial<typeof recipe>) => async () => {
  await ensureImages();
  const { make, leftovers } = anOwner();
  const runtime = await make();
  return {
    runtime,
    recipe: { ...recipe, ...changes },
    remake: make,
    leftovers,
    cleanup: async () => runtime.close(),
    exceptions: {},
  };
};

describe.skipIf(lacks('docker', 'busybox'))('docker', () => {
  runtimeContract('docker, root, own bridge', subject({ network: 'default' }));
  runtimeContract('docker, another user, read-only root, no network', subject({ user: 'agent', readOnly: true }));
});
