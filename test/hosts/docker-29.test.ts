import { tryHostsWith } from './acts.ts';
import { runOwnTests } from './own-tests.ts';

tryHostsWith('Docker 29', [2]);
runOwnTests('Docker 29', 'the docker runtime', 'images on the Engine');
