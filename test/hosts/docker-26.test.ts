import { tryHostsWith } from './acts.ts';
import { runOwnTests } from './own-tests.ts';

tryHostsWith('Docker 26', [1]);
runOwnTests('Docker 26', 'the docker runtime', 'the process runtime as root');
