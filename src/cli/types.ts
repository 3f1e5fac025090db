/** What a config can name: the one place where it meets the services and the clouds. */
import { serviceTypes } from '../ci/types.ts';
import { cloudTypes } from '../clouds/types.ts';
import type { Types } from '../config/types.ts';

export const types: Types = { services: serviceTypes, clouds: cloudTypes };
