/** The Dockerfiles that images are built with: files of their own, so that they can be read, and used without onejob. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

export interface Templates {
  /** Packages of the distribution. */
  readonly packages: string;
  /** The agent of a CI service, by the service's type. */
  readonly agents: Readonly<Record<string, string>>;
}

const folder = join(import.meta.dirname, 'dockerfiles');

/** Types of CI services whose agents must be in the image. */
const agentTypes: readonly string[] = ['azure-pipelines'];

export function hasAgentLayer(type: string): boolean {
  return agentTypes.includes(type);
}

export function readTemplates(): Templates {
  const read = (name: string): string => readFileSync(join(folder, `${name}.Dockerfile`), 'utf8');
  return { packages: read('packages'), agents: Object.fromEntries(agentTypes.map((type) => [type, read(type)])) };
}
