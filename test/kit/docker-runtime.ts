/** What the tests of this runtime share: a recipe over a test image, a runtime with an owner of its own. */
import { randomBytes } from 'node:crypto';
import { tmpdir } from 'node:os';
import type { Recipe } from '../../src/ports/runtime.ts';
import { createDockerRuntime, type DockerOptions } from '../../src/runtimes/docker/docker.ts';
import { engineThings } from '../support/census-engine.ts';
import { ensureImages, images } from '../support/images.ts';
import { bareRecipe } from './recipe.ts';
import type { ContractSubject } from './runtime-contract/contract.ts';

export const recipe: Recipe = { ...bareRecipe, image: images.base, pids: 4096, network: 'none', oomScoreAdj: 500 };

/** Settings that lead to one socket, whatever the environment says. */
export function settings(socket = '/var/run/docker.sock'): DockerOptions['environment'] {
  return { host: `unix://${socket}`, tlsVerify: false, certPath: null, context: null, config: tmpdir(), runtimeDir: null };
}

/** An owner no other test has, and runtimes for it. */
export function anOwner(socket = '/var/run/docker.sock') {
  const owner = `t${randomBytes(5).toString('hex')}`;
  return {
    owner,
    make: (changes: Partial<DockerOptions> = {}) => createDockerRuntime({ owner, environment: settings(socket), ...changes }),
    leftovers: async () => ((await engineThings(socket, owner)) ?? []).map(({ kind, id }) => `${kind} ${id}`),
  };
}

/** Opens a subject of the contract suite whose recipe, and whose runtime, have these changes. */
export function contractSubject(changes: Partial<Recipe>, options: Partial<DockerOptions> = {}): () => Promise<ContractSubject> {
  return async () => {
    await ensureImages();
    const { make, leftovers } = anOwner();
    const remake = () => make(options);
    const runtime = await remake();
    const cleanup = async () => runtime.close();
    const stranger = () => anOwner().make(options);
    return { runtime, recipe: { ...recipe, ...changes }, remake, stranger, leftovers, cleanup, exceptions: {} };
  };
}
