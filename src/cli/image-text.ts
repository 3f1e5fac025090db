/** What is built for the pools of a config, as a person could build it by hand. Pure but for reading Dockerfiles. */
import { readFile } from 'node:fs/promises';
import { serviceType } from '../ci/types.ts';
import type { AgentPackageConfig, Config, PoolConfig, ServiceConfig } from '../config/config.ts';
import { OnejobError, toFailure } from '../errors.ts';
import { buildPlan, readTemplates } from '../images/plan.ts';

export interface RecipeText {
  /** All that have this image. */
  readonly pools: readonly string[];
  /** Dockerfiles, each after the command that builds it. */
  readonly text: string;
}

/** `asked`: none for all pools. @throws OnejobError E_POOL_UNKNOWN, E_IMAGE_BUILD for a Dockerfile that cannot be read */
export async function recipeText(
  { pools, services }: Pick<Config, 'pools' | 'services'>,
  asked: readonly string[],
): Promise<RecipeText[]> {
  const unknown = asked.find((name) => !pools.some((pool) => pool.name === name));
  if (unknown !== undefined) {
    const known = pools.map(({ name }) => name).join(', ');
    throw new OnejobError('E_POOL_UNKNOWN', `There is no pool "${unknown}".`, { hint: `The pools are: ${known}.` });
  }
  const texts = new Map<string, string[]>();
  for (const pool of pools.filter(({ name }) => asked.length === 0 || asked.includes(name))) {
    const text = await textOf(
      pool,
      services.find(({ name }) => name === pool.service),
    );
    texts.set(text, [...(texts.get(text) ?? []), pool.name]);
  }
  return [...texts].map(([text, names]) => ({
    pools: names,
    text: `# ${names.length === 1 ? 'Pool' : 'Pools'} ${names.join(', ')}\n${text}`,
  }));
}

async function textOf({ imageRecipe, recipe }: PoolConfig, service: ServiceConfig | undefined): Promise<string> {
  if (imageRecipe === null) return `# Nothing is built: the image is ${recipe.image ?? 'none'}.\n`;
  const { base, packages, dockerfile: path } = imageRecipe;
  const dockerfile = path === null ? null : await read(path);
  const shown = base === 'auto' ? '"$(onejob image choose)"' : base;
  const { type, agent: kind } = serviceType(service?.type);
  const isIn = service !== undefined && 'agentPackage' in service && kind === 'in-image';
  const agent = isIn ? { type, ...packageOf(service.agentPackage) } : null;
  const ground = { bases: [], user: '', agent, owner: 'by-hand' };
  const plan = buildPlan({ type, base: shown, packages, dockerfile }, ground, readTemplates());
  if (plan === null) return `# Nothing is built: the image is ${shown}.\n`;
  let below = shown;
  return plan.layers
    .map(({ what, args, dockerfile: text, hasAgent }, at) => {
      const name = `layer:${at + 1}`;
      const given = { ...(below !== null && { BASE: below }), ...args };
      const options = Object.entries(given).map(
        ([key, value]) => `--build-arg ${key}=${/[\s<]/.test(value) ? `'${value}'` : value}`,
      );
      const unpack = hasAgent ? `# mkdir agent && tar -xzf <${agent?.from}> -C agent\n` : '';
      below = name;
      return `${unpack}# docker build -t ${name} ${options.join(' ')} .    (${what})\n${text.trimEnd()}\n`;
    })
    .join('\n');
}

function packageOf({ version, from, sha256 }: AgentPackageConfig) {
  return { version: version ?? '<the newest>', from: from ?? 'the package that the service hands out', sha256 };
}

async function read(path: string): Promise<string> {
  try {
    return await readFile(path, 'utf8');
  } catch (cause) {
    throw new OnejobError('E_IMAGE_BUILD', `Cannot read the Dockerfile ${path}: ${toFailure(cause).message}.`, {
      hint: 'Look at the path in "dockerfile" of the pool, and at the rights of the file.',
      cause,
    });
  }
}
