/** The main job on Docker; on processes it is in the long tests. */
import { images } from '../support/images.ts';
import { mainJob } from '../support/main-job.ts';
import { lacks } from '../support/require.ts';

mainJob('docker', lacks('docker'), `runtime: docker, image: "${images.base}"`);
