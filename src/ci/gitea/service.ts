/**
 * Gitea binds early: each standby becomes an ephemeral runner, with a key that is good for one job. The token stays here. With
 * `binding: late` it is `late.ts` instead.
 */

import { toFailure } from '../../base/errors.ts';
import type { PoolConfig } from '../../config/config.ts';
import type { AgentId } from '../../core/slot.ts';
import type { CiService } from '../../ports/ci-service.ts';
import { readSecret } from '../../schema/secret-reference.ts';
import { subdirectory } from '../../store/directory.ts';
import { EarlyBound } from '../early/engine.ts';
import type { Queue } from '../early/port.ts';
import type { Registrations } from '../early/registrations.ts';
import { openAgentProgram } from '../kit/agent-program.ts';
import { untilProgram } from '../kit/until-program.ts';
import type { OpenParts } from '../parts.ts';
import { GiteaClient } from './client.ts';
import { giteaFindings, howToFit } from './doctor.ts';
import { createRunnerKeys } from './keys.ts';
import { openLateGitea } from './late.ts';
import type { GiteaParts } from './parts.ts';
import { GiteaRegistry } from './registry.ts';
import { giteaRunner } from './release.ts';
import { equippedForGitea } from './script.ts';
import type { GiteaServiceConfig } from './type.ts';

export function openGitea(config: GiteaServiceConfig, parts: OpenParts): CiService {
  const { clock, fetch, onejob, store, variables } = parts;
  const token = () => readSecret(config.token, variables);
  const client = new GiteaClient({ url: config.url, token, clock, fetch, version: onejob.version });
  const program = openAgentProgram(config.name, giteaRunner(), config.agentPackage, parts);
  if (config.binding === 'late') return openLateGitea({ config, client, program }, parts);
  const keys = createRunnerKeys(subdirectory(store.dir, `runners-${config.name}`));
  const exitOf = (agent: AgentId) => store.history.get(agent)?.exit ?? null;
  return createGitea({ ...parts, config, client, program, keys, exitOf, random: Math.random });
}

export function createGitea(parts: GiteaParts) {
  const { config, pools, program, clock, log } = parts;
  const { name: service, url } = config;
  const early = { ...parts, service, url, queues: queuesOf(pools), pace: config, compare: howToFit };
  const connect = (known: Registrations) => new GiteaRegistry(parts, known);
  const { common, registry, registrations } = new EarlyBound(early, connect);

  return {
    ...common,
    capabilities: { binds: 'early', standsForSlots: false, terms: 1, poolTimeout: true, jobOnStdout: false },
    check(signal) {
      const isOurs = (name: string) => registrations.agentNames.agentOf(name) !== null;
      return giteaFindings(parts, { places: registry.places, isOurs, left: registrations.open().length }, signal);
    },
    observe(emit, signal) {
      const here = pools.flatMap(({ name, elsewhere }) => (elsewhere === undefined ? [name] : []));
      // Nothing here needs the runner to count jobs.
      if (here.length === 0) common.observe(emit, signal);
      else untilProgram({ program, clock, pools: here }, common.observe, emit, signal);
    },
    ending(agent, signal) {
      registry.isEnding(agent.agent, agent.why);
      return common.ending(agent, signal);
    },
    listen: (agent) => (line) => registry.heard(agent, line),
    async deregister(context, signal) {
      try {
        await registry.bury(context.agent, signal);
      } catch (error) {
        signal.throwIfAborted();
        log.warn('failed to end the job of an agent that is gone', { agent: context.agent, reason: toFailure(error).message });
      }
      const answer = await common.deregister(context, signal);
      // The sweep continues with what is known.
      if (answer.ran !== undefined) registry.forget(context.agent);
      return answer;
    },
    equip: (recipe) => equippedForGitea(recipe, program.folder),
  } satisfies CiService;
}

/** Each place once, with its pools. Names of owners and repositories have no case there. */
function queuesOf(pools: readonly Pick<PoolConfig, 'name' | 'queue'>[]): Queue[] {
  const queues = [...Map.groupBy(pools, ({ queue }) => queue.toLowerCase()).values()];
  return queues.map((same) => ({ name: same[0]?.queue ?? '', pools: same.map(({ name }) => name) }));
}
