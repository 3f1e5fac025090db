import { tryHostsWith } from './acts.ts';
import { runOwnTests } from './own-tests.ts';

tryHostsWith('Docker 28');
runOwnTests(
  'Docker 28',
  'the docker runtime',
  'the process runtime as a user that lingers',
  'the process runtime where AppArmor forbids namespaces to bubblewrap',
);
