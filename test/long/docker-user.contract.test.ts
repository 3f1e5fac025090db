import { describe } from 'vitest';
import { contractSubject } from '../kit/docker-runtime.ts';
import { runtimeContract } from '../kit/runtime-contract/contract.ts';
import { lacks } from '../support/require.ts';

describe.skipIf(lacks('docker', 'busybox'))('docker', () => {
  runtimeContract(
    'docker, another user, read-only root, no network',
    contractSubject({ user: 'agent', readOnly: true, network: 'none' }),
  );
  runtimeContract('docker, logs by its API', contractSubject({}, { readFiles: false }));
});
