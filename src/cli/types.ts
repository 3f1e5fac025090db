/** What a config can name: the one place where it meets the services, the runtimes and the clouds. */
import { serviceTypes } from '../ci/types.ts';
import { cloudTypes } from '../clouds/types.ts';
import type { Types } from '../config/types.ts';
import { runtimeTypes } from '../runtimes/types.ts';

export const types: Types = { services: serviceTypes, clouds: cloudTypes, runtimes: runtimeTypes };
