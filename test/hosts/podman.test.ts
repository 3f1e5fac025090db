import { tryHostsWith } from './acts.ts';
import { runOwnTests } from './own-tests.ts';

tryHostsWith('Podman');
runOwnTests('Podman', 'the docker runtime with Podman');
