/** The stand-in without a socket and without time of its own. */
import { type InProcess, type InProcessOptions as Options, openInProcess } from '../kit/in-process.ts';
import type { Fault } from './faults.ts';
import { createOrganisation } from './organisation.ts';
import { sweep } from './queue.ts';
import type { World } from './state.ts';
import type { AzureDevOps, LoggedRequest, StandInOptions } from './types.ts';

export interface InProcessOptions extends Omit<StandInOptions, 'now' | 'after'>, Options<LoggedRequest, Fault> {
  /** `http://host:port`, which stands in the URLs of its answers. */
  readonly origin: string;
}

export interface AzureInProcess extends InProcess {
  readonly azure: Omit<AzureDevOps, typeof Symbol.asyncDispose>;
  readonly world: World;
  /** Lets locks and sessions run out that have. */
  sweep(): void;
}

export function openAzureDevOps(o: InProcessOptions): AzureInProcess {
  const { made, reached } = openInProcess(o, (entrance) =>
    createOrganisation(o, { ...entrance, origin: o.origin, port: 0, elsewhere: 'http://elsewhere.invalid', strays: [] }),
  );
  const { azure, service } = made;
  const { world } = service;
  return Object.assign(reached, { azure, world, sweep: () => sweep(world) });
}
