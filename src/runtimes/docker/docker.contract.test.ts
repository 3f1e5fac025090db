import { describe } from 'vitest';
import { contractSubject } from '../../../test/kit/docker-runtime.ts';
import { runtimeContract } from '../../../test/kit/runtime-contract/contract.ts';
import { lacks } from '../../../test/support/require.ts';

// As another user, with a read-only root and no network: test/long/docker-user.contract.test.ts.
describe.skipIf(lacks('docker', 'busybox'))('docker', () => {
  runtimeContract('docker, root, own bridge', contractSubject({ network: 'default' }));
});
