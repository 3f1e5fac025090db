import { describe } from 'vitest';
import { runtimeContract } from '../../src/runtimes/contract.ts';
import { contractSubject } from '../../src/runtimes/docker/testing.ts';
import { lacks } from '../support/require.ts';

describe.skipIf(lacks('docker', 'busybox'))('docker', () => {
  runtimeContract(
    'docker, another user, read-only root, no network',
    contractSubject({ user: 'agent', readOnly: true, network: 'none' }),
  );
  runtimeContract('docker, logs by its API', contractSubject({}, { readFiles: false }));
});
