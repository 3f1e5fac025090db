/** The main job on processes; on Docker it is in the end-to-end tests. */
import { mainJob } from '../support/main-job.ts';
import { lacks } from '../support/require.ts';

mainJob('bubblewrap', lacks('bubblewrap'), 'runtime: process');
