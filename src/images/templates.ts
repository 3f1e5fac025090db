/** The Dockerfiles that images are built with: files of their own, so that they can be read, and used without onejob. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { ServiceType } from '../ci/service-type.ts';
import { serviceType, serviceTypes } from '../ci/types.ts';

export interface Templates {
  /** Packages of the distribution. */
  readonly packages: string;
  /** The agent of a CI service, by the service's type. */
  readonly agents: Readonly<Record<string, string>>;
  /** What an agent that is mounted needs of its image, likewise. */
  readonly needs: Readonly<Record<string, string>>;
}

const folder = join(import.meta.dirname, 'dockerfiles');

/** Whether images for this type of service have a layer of their own, whatever config says. */
export function hasOwnLayer(type: string): boolean {
  return serviceType(type).agent !== null;
}

export function readTemplates(): Templates {
  const read = (name: string): string => readFileSync(join(folder, `${name}.Dockerfile`), 'utf8');
  const all = (agent: ServiceType['agent']) =>
    Object.fromEntries(serviceTypes.filter((one) => one.agent === agent).map(({ type }) => [type, read(type)]));
  return { packages: read('packages'), agents: all('in-image'), needs: all('mounted') };
}
