/** Every scenario, and every outside system that one can name. */
import { azurePipelines } from '../azure.ts';
import { buildkiteService } from '../buildkite.ts';
import { gpus, gpusOf18 } from '../gpus.ts';
import { ownQueueUsers } from '../own.ts';
import type { MakeOutside, Scenario } from '../scenario.ts';
import { stopwatch } from '../stopwatch.ts';
import { trouble } from '../trouble.ts';
import { updates } from '../updates.ts';
import { azure } from './azure.ts';
import { buildkite } from './buildkite.ts';
import { engine } from './engine.ts';
import { gpus as gpuScenarios } from './gpus.ts';
import { grants } from './grants.ts';
import { ownQueue } from './own-queue.ts';
import { quiet } from './quiet.ts';
import { updates as updateScenarios } from './updates.ts';

export const scenarios: readonly Scenario[] = [
  ...ownQueue,
  ...engine,
  ...grants,
  ...quiet,
  ...updateScenarios,
  ...azure,
  ...buildkite,
  ...gpuScenarios,
];

export const outsides: Readonly<Record<string, MakeOutside>> = {
  own: ownQueueUsers,
  stopwatch,
  trouble,
  updates,
  azure: azurePipelines,
  buildkite: buildkiteService,
  gpus,
  gpusOf18,
};
