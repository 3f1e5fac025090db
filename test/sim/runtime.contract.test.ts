/** The simulated runtime keeps what every runtime promises, in virtual time. */
import { runtimeContract } from '../kit/runtime-contract/contract.ts';
import { simSubject } from './testing.ts';

runtimeContract('simulated', simSubject());
runtimeContract('simulated, containers', simSubject({ images: true }));
runtimeContract('simulated, engine', simSubject({ grants: true }));
