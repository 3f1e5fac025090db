/** What is built for a recipe: one Dockerfile on top of the other. The same recipe, base and agent give the same plan and name. */
import { hash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { OnejobError, toFailure } from '../base/errors.ts';
import type { AgentPackage } from '../ports/ci-service.ts';
import { readSmall, ServerAway } from '../system/small-file.ts';

export const imageLabels = {
  /** Id of the installation that built it; `by-hand` for a template that was used without onejob. */
  owner: 'io.onejob.owner',
  /** Hash of everything it was built from. */
  hash: 'io.onejob.image.hash',
  /** Hash of what the config asks for: two images of one recipe are an older and a newer one. */
  recipe: 'io.onejob.image.recipe',
  /** The base, as it was written or chosen. */
  base: 'io.onejob.image.base',
  agentVersion: 'io.onejob.agent.version',
  agentHash: 'io.onejob.agent.hash',
} as const;

export interface ImageOrder {
  /** Type of the CI service whose agents run in it. */
  readonly type: string;
  /** Reference of the image to build on; null when a Dockerfile names it. */
  readonly base: string | null;
  readonly packages: readonly string[];
  /** Text of the Dockerfile that is built first; null for none. */
  readonly dockerfile: string | null;
}

export interface Ground {
  readonly bases: readonly string[];
  readonly agent: AgentPackage | null;
  readonly owner: string;
}

export interface Layer {
  /** For people, such as `packages`. The build context of `agent` contains the agent's unpacked package as the folder `agent`. */
  readonly what: 'your Dockerfile' | 'packages' | 'needs' | 'agent';
  readonly dockerfile: string;
  /** Without BASE and BASE_USER, which come from the layer below. */
  readonly args: Readonly<Record<string, string>>;
}

export interface BuildPlan {
  readonly reference: string;
  readonly hash: string;
  readonly recipe: string;
  readonly layers: readonly Layer[];
  /** Labels of the result, in addition to those of the Dockerfiles. */
  readonly labels: Readonly<Record<string, string>>;
}

/** Hash of what the config asks for, whatever is published now. */
export function recipeOf({ type, base, packages, dockerfile }: ImageOrder): string {
  return digest({ type, base, packages: sorted(packages), dockerfile });
}

/** null when there is nothing to build: the base is the image. */
export function buildPlan(wish: ImageOrder, ground: Ground, templates: Templates): BuildPlan | null {
  const { agent, owner } = ground;
  const packages = sorted(wish.packages);
  const layer = (what: Layer['what'], dockerfile: string | null | undefined, args: Layer['args']): Layer[] =>
    dockerfile == null ? [] : [{ what, dockerfile, args }];
  const layers = [
    ...layer('your Dockerfile', wish.dockerfile, {}),
    ...layer('packages', packages.length > 0 ? templates.packages : null, { OWNER: owner, PACKAGES: packages.join(' ') }),
    ...layer('needs', templates.needs[wish.type], { OWNER: owner }),
    ...layer('agent', agent && templates.agent, {
      OWNER: owner,
      AGENT_VERSION: agent?.version ?? '',
      AGENT_TYPE: agent?.type ?? '',
    }),
  ];
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

/** Base images of a Dockerfile, in its order, without its own stages and those that only its arguments name. */
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

/** The same Dockerfile with an owner label in every stage, so that a failed build has it too. */
export function withOwner(dockerfile: string, owner: string): string {
  const mark = `LABEL ${imageLabels.owner}=${owner}`;
  const isWhole = (line: string) => !line.trimEnd().endsWith('\\');
  const lines = dockerfile.split('\n');
  return lines.map((line, at) => (isFrom(line, at, lines) && isWhole(line) ? `${line.trimEnd()}\n${mark}` : line)).join('\n');
}

/** Whether a line is a FROM, and not a part of another instruction. */
function isFrom(line: string, at: number, all: readonly string[]): boolean {
  return /^\s*FROM\s/i.test(line) && all[at - 1]?.trimEnd().endsWith('\\') !== true;
}

function sorted(packages: readonly string[]): string[] {
  return [...new Set(packages)].sort();
}

function digest(value: object): string {
  return hash('sha256', JSON.stringify(value));
}

/** The Dockerfiles of images: separate files, so that people can read them and use them without onejob. */
export interface Templates {
  readonly packages: string;
  readonly agent: string;
  /** By type of CI service: what a mounted agent needs in its image. */
  readonly needs: Readonly<Partial<Record<string, string>>>;
}

const folder = join(import.meta.dirname, 'dockerfiles');

export function readTemplates(): Templates {
  const read = (name: string): string => readFileSync(join(folder, `${name}.Dockerfile`), 'utf8');
  const types = readdirSync(folder)
    .map((file) => basename(file, '.Dockerfile'))
    .filter((name) => !['packages', 'agent'].includes(name));
  const needs = Object.fromEntries(types.map((type) => [type, read(type)]));
  return { packages: read('packages'), agent: read('agent'), needs };
}

/** Bytes. */
const largestDockerfile = 1 << 20;

/** @throws OnejobError E_IMAGE_BUILD, with `retry` while its file server does not answer */
export async function readDockerfile(path: string): Promise<string> {
  const failed = (why: string, more: { readonly retry?: boolean; readonly cause?: unknown } = {}) => {
    const hint = 'Check the path in "dockerfile" of the pool, and the permissions of the file.';
    return new OnejobError('E_IMAGE_BUILD', `Cannot read the Dockerfile ${path}: ${why}.`, { hint, ...more });
  };
  const found = await readSmall(path, largestDockerfile).catch((cause: unknown) => {
    throw failed(toFailure(cause).message, { cause, retry: cause instanceof ServerAway });
  });
  if (!found.isFile) throw failed('it is not a file');
  if (found.size > largestDockerfile) throw failed('it is larger than 1 MiB');
  return found.text;
}
