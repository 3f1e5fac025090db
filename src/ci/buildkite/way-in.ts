/** How a sandbox becomes an agent: what is mounted into it, where it finds the broker, and the script that begins it. */
import type { PoolConfig } from '../../config/config.ts';
import { OnejobError } from '../../errors.ts';
import type { Recipe } from '../../runtimes/runtime.ts';
import type { AgentContext } from '../ci-service.ts';
import type { BrokerDesk } from './broker-desk.ts';
import type { Program } from './mounted-program.ts';
import { agentScript, ownFolder } from './script.ts';

/** Where the agent's program and the owner's hooks are in a sandbox: in a folder that neither images nor hosts have. */
export const inside = {
  program: `${ownFolder}/buildkite-agent`,
  hooks: `${ownFolder}/hooks`,
  plugins: `${ownFolder}/plugins`,
} as const;

export interface WayInParts {
  readonly pools: ReadonlyMap<string, PoolConfig>;
  readonly desk: Pick<BrokerDesk, 'port' | 'door'>;
  readonly program: Pick<Program, 'folder'>;
}

export interface WayIn {
  /** As `CiService.equip`. */
  equip(recipe: Recipe, pool: string): Recipe;
  /** Base of the broker's calls as the context's sandbox sees it. @throws OnejobError E_BROKER (retry), E_NO_DOOR */
  endpoint(context: AgentContext, signal: AbortSignal): Promise<string>;
  /** `token`: good for one registration. The rest as in `agentScript`. */
  script(
    context: AgentContext,
    about: { readonly token: string; readonly endpoint: string; readonly job: string | null; readonly note: string | null },
  ): string;
  /** The broker that is there may be another one. */
  forget(): void;
}

export function createWayIn({ pools, desk, program }: WayInParts): WayIn {
  /** Addresses that the broker that is there is known to listen at. */
  const doors = new Set<string>();

  return {
    equip(recipe, pool) {
      const { folder } = program;
      const config = pools.get(pool);
      const mount = (host: string, container: string): Recipe['mounts'][number] => ({
        host,
        container,
        readOnly: true,
        variable: null,
        cache: null,
      });
      const mounts = [
        ...(folder === null ? [] : [mount(`${folder}/buildkite-agent`, inside.program)]),
        ...(config?.hooks == null ? [] : [mount(config.hooks, inside.hooks)]),
        ...(config?.plugins == null ? [] : [mount(config.plugins, inside.plugins)]),
      ];
      return mounts.length === 0 ? recipe : { ...recipe, mounts: [...recipe.mounts, ...mounts] };
    },
    async endpoint(context, signal) {
      const { port } = desk;
      if (port === null) throw brokerAway();
      const address = await context.door(port, signal);
      if (!doors.has(address)) {
        await desk.door(address, signal);
        doors.add(address);
      }
      return `http://${address}:${port}/v3`;
    },
    script({ name, workspace, pool }, { token, endpoint, job, note }) {
      const config = pools.get(pool);
      return agentScript({
        ...{ token, endpoint, job, note, name, workspace },
        hooks: config?.hooks == null ? null : inside.hooks,
        plugins: config?.plugins == null ? null : inside.plugins,
        verifiesCommit: config?.trust.branches != null,
        cancelGrace: Math.max(1_000, (config?.stopGrace ?? 35_000) - 5_000),
      });
    },
    forget: () => doors.clear(),
  };
}

export function brokerAway(): OnejobError {
  return new OnejobError('E_BROKER', 'The broker, which carries what Buildkite agents say, is not there.', {
    hint: 'It is started again by itself.',
    retry: true,
  });
}
