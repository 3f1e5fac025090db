import { describe } from 'vitest';
import { lacks } from '../../../test/support/require.ts';
import { runtimeContract } from '../contract.ts';
import { contractSubject } from './testing.ts';

// As another user, with a read-only root and no network: test/long/docker-user.contract.test.ts.
describe.skipIf(lacks('docker', 'busybox'))('docker', () => {
  runtimeContract('docker, root, own bridge', contractSubject({ network: 'default' }));
});
