/** Every type of CI service that config can name. A new type is a folder here, a line in this file, and one in `open.ts`. */
import { azurePipelines } from './azure-pipelines/type.ts';
import { buildkite } from './buildkite/type.ts';
import { gitea } from './gitea/type.ts';
import { github } from './github/type.ts';
import { gitlab } from './gitlab/type.ts';
import { ownQueue } from './own-queue/type.ts';
import type { ServiceType } from './service-type.ts';

export const serviceTypes = [ownQueue, azurePipelines, buildkite, gitea, github, gitlab] as const;

/** An entry of `services`, by its type. */
export type KnownService = NonNullable<ReturnType<(typeof serviceTypes)[number]['resolve']>>;

/** The own queue's for an unknown type. */
export function serviceType(type: string | undefined): ServiceType {
  return serviceTypes.find((one) => one.type === type) ?? ownQueue;
}
