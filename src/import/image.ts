/** `build` and `image` of a Compose service as `image` of a pool. */
import { posix } from 'node:path';
import type { Plain } from './agent.ts';
import { readDockerfile } from './dockerfile.ts';
import { isMap, pairsOf, textOf } from './plain.ts';

export interface ImageInput {
  readonly service: Readonly<Record<string, unknown>>;
  /** Relative to the folder that was read, of the Compose file. */
  readonly folder: string;
  /** A file below or beside that folder; null when there is none. */
  read(path: string): string | null;
  say(level: 'warning' | 'note', path: readonly (string | number)[], message: string): void;
  /** Of another file, such as the Dockerfile. */
  tell(file: string, line: number | null, level: 'warning' | 'note', message: string): void;
}

export interface ImageFound {
  readonly image: Plain | null;
  readonly hasSecretsKey: boolean;
  readonly hasAgent: boolean;
  /** Folder that it is built from, relative to the folder that was read; null when it is not built. */
  readonly context: string | null;
}

/** What the agent needs of an image (facts: bash comes with every base, git does not). */
const always = ['git'];

/** What is taken where nobody knows what an image is made of. */
const usualPackages = ['git', 'curl'];

export function readImage({ service, folder, read, say, tell }: ImageInput): ImageFound {
  const { build } = service;
  const finished = textOf(service.image);
  if (build === undefined || build === null) {
    const image = finished === null || finished === '' ? null : finished;
    return { image, hasSecretsKey: false, hasAgent: image !== null && /buildkite/i.test(image), context: null };
  }
  const written = isMap(build) ? build : { context: build };
  const context = posix.normalize(posix.join(folder, textOf(written.context) ?? '.'));
  const args = new Map(pairsOf(written.args).flatMap(({ key, value }) => (value === null ? [] : [[key, value] as const])));
  const file = posix.join(context, textOf(written.dockerfile) ?? 'Dockerfile');
  const inline = textOf(written.dockerfile_inline);
  const text = inline ?? read(file);
  const argument =
    [...args].find(([key]) => /^base(_?image)?$/i.test(key)) ?? [...args].find(([key]) => /base|image|from/i.test(key));
  if (text === null) {
    const base = argument?.[1] ?? null;
    const what =
      base === null ? 'what its image is built on is not known either: "base" is a guess, ubuntu:24.04' : `"base" is ${base}`;
    say('warning', ['build'], `${file} was not found, so its packages are not known; ${what}`);
    return { image: { base: base ?? 'ubuntu:24.04', packages: usualPackages }, hasSecretsKey: false, hasAgent: false, context };
  }
  const recipe = readDockerfile(text, args);
  for (const { line, text: instruction } of recipe.left) {
    const shown = instruction.length > 100 ? `${instruction.slice(0, 99)}…` : instruction;
    const where = inline === null ? `${shown}: not carried over` : `"dockerfile_inline": ${shown}: not carried over`;
    if (inline === null) tell(file, line, 'warning', where);
    else say('warning', ['build', 'dockerfile_inline'], where);
  }
  const base = recipe.base ?? argument?.[1] ?? null;
  if (base === null)
    say('warning', ['build'], `what ${file} builds on depends on something that is not known: "base" is a guess, ubuntu:24.04`);
  const packages = [...always.filter((one) => !recipe.packages.includes(one)), ...recipe.packages];
  const image = { base: base ?? 'ubuntu:24.04', packages };
  return { image, hasSecretsKey: recipe.hasSecretsKey, hasAgent: recipe.hasAgent, context };
}
