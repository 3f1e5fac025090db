/** Every scenario, and every outside system that one can name. */
import { ownQueueUsers } from '../own.ts';
import type { MakeOutside, Scenario } from '../scenario.ts';
import { ownQueue } from './own-queue.ts';

export const scenarios: readonly Scenario[] = [...ownQueue];

export const outsides: Readonly<Record<string, MakeOutside>> = { own: ownQueueUsers };
