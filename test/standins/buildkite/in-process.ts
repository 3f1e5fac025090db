/** The stand-in without a socket and without time of its own. There is no host for artifacts. */
import { type InProcess, type InProcessOptions as Options, openInProcess } from '../kit/in-process.ts';
import type { Fault } from './faults.ts';
import { createOrganisation, type Organisation } from './organisation.ts';
import { isOver, type World } from './state.ts';
import type { BuildkiteOptions, LoggedRequest } from './types.ts';

export type InProcessOptions = Omit<BuildkiteOptions, 'now' | 'after'> & Options<LoggedRequest, Fault>;

export interface BuildkiteInProcess extends InProcess {
  readonly buildkite: Organisation;
  readonly world: World;
  /** Drops what was over before `time`, by its clock: nothing is ever asked about it again. */
  forget(time: number): void;
}

export function openBuildkiteStandin(o: InProcessOptions): BuildkiteInProcess {
  const { made, reached } = openInProcess(o, (entrance) => createOrganisation(o, entrance));
  const { buildkite, service } = made;
  const { world } = service;
  return Object.assign(reached, {
    buildkite,
    world,
    forget(time: number) {
      for (const [id, job] of world.jobs) {
        if (!isOver(job) || (job.times.finished ?? time) >= time) continue;
        world.jobs.delete(id);
        world.builds.delete(job.build.id);
        if (job.token !== null) world.jobTokens.delete(job.token);
      }
      for (const [id, agent] of world.agents) {
        if (agent.gone === null || agent.gone >= time) continue;
        world.agents.delete(id);
        world.sessions.delete(agent.session);
      }
      for (const [token, { until }] of world.acquisitionTokens) if (until < o.now()) world.acquisitionTokens.delete(token);
    },
  });
}
