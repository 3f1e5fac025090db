/**
 * What is built for a recipe: one Dockerfile after the other, each on top of what the one before it made. The same
 * recipe on the same base with the same agent gives the same plan, and with it the same name.
 */

import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { AgentPackage } from '../ci/ci-service.ts';
import type { ServiceType } from '../ci/service-type.ts';
import { serviceType, serviceTypes } from '../ci/types.ts';
import { OnejobError, toFailure } from '../errors.ts';

export const imageLabels = {
  /** Id of the installation that built it; `by-hand` for who used a template without onejob. */
  owner: 'io.onejob.owner',
  /** Hash of all it was built from. */
  hash: 'io.onejob.image.hash',
  /** Hash of what the config asks for: two images of one recipe are an older and a newer one. */
  recipe: 'io.onejob.image.recipe',
  /** What it was built on, as it was written or chosen. */
  base: 'io.onejob.image.base',
  agentType: 'io.onejob.agent.type',
  agentVersion: 'io.onejob.agent.version',
  agentRoot: 'io.onejob.agent.root',
  agentHash: 'io.onejob.agent.hash',
} as const;

/** What is wanted, as far as the config says it. */
export interface Wish {
  /** Type of the CI service whose agents run in it. */
  readonly type: string;
  /** Reference of the image to build on; null when a Dockerfile names it. */
  readonly base: string | null;
  readonly packages: readonly string[];
  /** Text of the Dockerfile that is built first; null for none. */
  readonly dockerfile: string | null;
}

/** What was found out about a wish before it is built. */
export interface Ground {
  /** Ids of the images that it is built on. */
  readonly bases: readonly string[];
  /** User of the base; empty for root. With a Dockerfile what is made of it says it. */
  readonly user: string;
  readonly agent: AgentPackage | null;
  /** Id of this installation. */
  readonly owner: string;
}

export interface Layer {
  /** For people, such as `packages`. */
  readonly what: 'your Dockerfile' | 'packages' | 'needs' | 'agent';
  readonly dockerfile: string;
  /** Without BASE and BASE_USER, which are what the layer below made. */
  readonly args: Readonly<Record<string, string>>;
  /** The agent's package is sent along, unpacked, as the folder `agent`. */
  readonly hasAgent: boolean;
}

export interface BuildPlan {
  /** Name and tag; the tag is the beginning of the hash. */
  readonly reference: string;
  readonly hash: string;
  readonly recipe: string;
  readonly layers: readonly Layer[];
  /** Of what is made in the end, beside those that the Dockerfiles give. */
  readonly labels: Readonly<Record<string, string>>;
}

/** Hash of what the config asks for, whatever is published now. */
export function recipeOf({ type, base, packages, dockerfile }: Wish): string {
  return digest({ type, base, packages: sorted(packages), dockerfile });
}

/** null when there is nothing to build: the base is the image. */
export function buildPlan(wish: Wish, ground: Ground, templates: Templates): BuildPlan | null {
  const { agent, owner } = ground;
  const packages = sorted(wish.packages);
  const template = agent === null ? undefined : templates.agents[agent.type];
  const layers: Layer[] = [];
  if (wish.dockerfile !== null) layers.push({ what: 'your Dockerfile', dockerfile: wish.dockerfile, args: {}, hasAgent: false });
  if (packages.length > 0) {
    const args = { OWNER: owner, PACKAGES: packages.join(' ') };
    layers.push({ what: 'packages', dockerfile: templates.packages, args, hasAgent: false });
  }
  const needs = templates.needs[wish.type];
  if (needs !== undefined) layers.push({ what: 'needs', dockerfile: needs, args: { OWNER: owner }, hasAgent: false });
  if (agent !== null && template !== undefined) {
    layers.push({ what: 'agent', dockerfile: template, args: { OWNER: owner, AGENT_VERSION: agent.version }, hasAgent: true });
  }
  if (layers.length === 0) return null;
  const recipe = recipeOf(wish);
  const hash = digest({
    bases: [...ground.bases],
    layers: layers.map(({ dockerfile, args: { OWNER: _, ...args } }) => ({ dockerfile, args })),
    agent: agent === null ? null : { version: agent.version, sha256: agent.sha256 ?? agent.from },
  });
  return {
    reference: `onejob/${wish.type}:${hash.slice(0, 12)}`,
    hash,
    recipe,
    layers,
    labels: {
      [imageLabels.owner]: owner,
      [imageLabels.hash]: hash,
      [imageLabels.recipe]: recipe,
      ...(wish.base !== null && { [imageLabels.base]: wish.base }),
      ...(agent !== null && { [imageLabels.agentHash]: hash }),
    },
  };
}

/** Images that a Dockerfile is built on, in its order; stages of its own and what only its arguments say are none. */
export function basesOf(dockerfile: string): string[] {
  const stages = new Set<string>(['scratch']);
  const bases = new Set<string>();
  for (const line of dockerfile.split('\n').filter(isFrom)) {
    const [, image = '', stage] = /^\s*FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?/i.exec(line) ?? [];
    if (image !== '' && !image.includes('$') && !stages.has(image.toLowerCase())) bases.add(image);
    if (stage !== undefined) stages.add(stage.toLowerCase());
  }
  return [...bases];
}

/** The same Dockerfile, whose every step makes something that says whose it is: also where it fails or is cut off. */
export function withOwner(dockerfile: string, owner: string): string {
  const mark = `LABEL ${imageLabels.owner}=${owner}`;
  return dockerfile
    .split('\n')
    .map((line, at, all) => (isFrom(line, at, all) && !line.trimEnd().endsWith('\\') ? `${line.trimEnd()}\n${mark}` : line))
    .join('\n');
}

/** Whether a line is a FROM, and not the rest of another instruction. */
function isFrom(line: string, at: number, all: readonly string[]): boolean {
  return /^\s*FROM\s/i.test(line) && all[at - 1]?.trimEnd().endsWith('\\') !== true;
}

function sorted(packages: readonly string[]): string[] {
  return [...new Set(packages)].sort();
}

/** Of a value whose keys are always written in the same order. */
function digest(value: object): string {
  return createHash('sha256').update(JSON.stringify(value)).digest('hex');
}

/** The Dockerfiles that images are built with: files of their own, so that they can be read, and used without onejob. */
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

/** A Dockerfile of the owner's. @throws OnejobError E_IMAGE_BUILD */
export async function readDockerfile(path: string): Promise<string> {
  try {
    return await readFile(path, 'utf8');
  } catch (cause) {
    throw new OnejobError('E_IMAGE_BUILD', `Cannot read the Dockerfile ${path}: ${toFailure(cause).message}.`, {
      hint: 'Check the path in "dockerfile" of the pool, and the permissions of the file.',
      cause,
    });
  }
}
