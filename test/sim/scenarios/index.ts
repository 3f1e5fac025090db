/** Every scenario, and every outside system that one can name. */
import { azurePipelines } from '../azure.ts';
import { buildkiteService } from '../buildkite.ts';
import { gpus } from '../gpus.ts';
import { ownQueueUsers } from '../own.ts';
import type { MakeOutside, Scenario } from '../scenario.ts';
import { azure } from './azure.ts';
import { buildkite } from './buildkite.ts';
import { engine } from './engine.ts';
import { gpus as gpuScenarios } from './gpus.ts';
import { ownQueue } from './own-queue.ts';

export const scenarios: readonly Scenario[] = [...ownQueue, ...engine, ...azure, ...buildkite, ...gpuScenarios];

export const outsides: Readonly<Record<string, MakeOutside>> = {
  own: ownQueueUsers,
  azure: azurePipelines,
  buildkite: buildkiteService,
  gpus,
};
