/** The Dockerfiles that images are built with: files of their own, so that they can be read, and used without onejob. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

export interface Templates {
  /** Packages of the distribution. */
  readonly packages: string;
  /** The agent of a CI service, by the service's type. */
  readonly agents: Readonly<Record<string, string>>;
  /** What an agent that is mounted needs of its image, likewise. */
  readonly needs: Readonly<Record<string, string>>;
}

const folder = join(import.meta.dirname, 'dockerfiles');

/** Types of CI services whose agents must be in the image. */
const agentTypes: readonly string[] = ['azure-pipelines'];
/** Those whose agents are mounted, and need something of the image. */
const needyTypes: readonly string[] = ['buildkite'];

/** Whether images for this type of service have a layer of their own, whatever config says. */
export function hasOwnLayer(type: string): boolean {
  return agentTypes.includes(type) || needyTypes.includes(type);
}

export function readTemplates(): Templates {
  const read = (name: string): string => readFileSync(join(folder, `${name}.Dockerfile`), 'utf8');
  const all = (types: readonly string[]) => Object.fromEntries(types.map((type) => [type, read(type)]));
  return { packages: read('packages'), agents: all(agentTypes), needs: all(needyTypes) };
}
