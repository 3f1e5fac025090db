/** How a sandbox becomes an agent: what is mounted into it, and the script that begins it. */
import type { PoolConfig } from '../../config/config.ts';
import type { Recipe } from '../../runtimes/runtime.ts';
import type { AgentContext } from '../ci-service.ts';
import { agentScript, ownFolder, type ScriptParts } from './script.ts';

/** Where the agent's program and the owner's hooks are in a sandbox: in a folder that neither images nor hosts have. */
export const inside = {
  program: `${ownFolder}/buildkite-agent`,
  hooks: `${ownFolder}/hooks`,
  plugins: `${ownFolder}/plugins`,
} as const;

/** As `CiService.equip`. `folder`: on this host, with the agent's program; null: the image brings its own. */
export function equipped(recipe: Recipe, pool: PoolConfig | undefined, folder: string | null): Recipe {
  const mount = (host: string, container: string): Recipe['mounts'][number] => ({
    host,
    container,
    readOnly: true,
    variable: null,
    cache: null,
  });
  const mounts = [
    ...(folder === null ? [] : [mount(`${folder}/buildkite-agent`, inside.program)]),
    ...(pool?.hooks == null ? [] : [mount(pool.hooks, inside.hooks)]),
    ...(pool?.plugins == null ? [] : [mount(pool.plugins, inside.plugins)]),
  ];
  return mounts.length === 0 ? recipe : { ...recipe, mounts: [...recipe.mounts, ...mounts] };
}

/** As `agentScript`, with what its pool says. */
export function scriptFor(
  { name, workspace }: Pick<AgentContext, 'name' | 'workspace'>,
  pool: PoolConfig,
  about: Pick<ScriptParts, 'token' | 'endpoint' | 'job' | 'note' | 'secrets' | 'isFiltered'>,
): string {
  return agentScript({
    ...{ ...about, name, workspace },
    tags: [`queue=${pool.queue}`, ...pool.tags],
    hooks: pool.hooks === null ? null : inside.hooks,
    plugins: pool.plugins === null ? null : inside.plugins,
    verifiesCommit: pool.trust.branches != null,
    cancelGrace: Math.max(1_000, pool.stopGrace - 5_000),
  });
}
