/** How services are written, by their type: as each says itself. */
import type { ServiceSchema } from '../ci/service-type.ts';
import { serviceTypes } from '../ci/types.ts';
import type { ServiceConfig } from './config.ts';

export const serviceSchemas = Object.fromEntries(
  await Promise.all(serviceTypes.map(async ({ type, schema }) => [type, await schema()] as const)),
) as Readonly<Record<ServiceConfig['type'], ServiceSchema>>;
