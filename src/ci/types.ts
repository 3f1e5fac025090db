/** Every type of CI service that config can name. A new type is a folder here, a line in this file, and one in `index.ts`. */
import type { ServiceConfig } from '../config/config.ts';
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

/** Services of both configs with a key that differs and cannot change while they have agents. */
export function fixedChanges(before: readonly ServiceConfig[], after: readonly ServiceConfig[]) {
  return before.flatMap((one) => {
    const other = after.find(({ name, type }) => name === one.name && type === one.type);
    const read = (of: object, key: string): unknown => new Map(Object.entries(of)).get(key);
    const keys = serviceType(one.type).fixed ?? [];
    const key = other === undefined ? undefined : keys.find((each) => read(one, each) !== read(other, each));
    return key === undefined ? [] : [{ service: one.name, key }];
  });
}
