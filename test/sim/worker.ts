/** A process that plays scenarios as it is told, one after the other; its parent is `main.ts`. */
import { installBuiltins } from './builtins.ts';
import type { Happening, Outcome } from './scenario.ts';

export interface Order {
  readonly scenario: string;
  readonly seed: number;
  /** Instead of what the seed draws. */
  readonly happenings?: readonly Happening[];
  readonly lines?: number;
}

export type Answer = Outcome & { readonly ms: number; readonly heap: number };

installBuiltins();
const { play } = await import('./scenario.ts');
const { outsides, scenarios } = await import('./scenarios/index.ts');

process.on('message', async (order: Order) => {
  const scenario = scenarios.find(({ name }) => name === order.scenario);
  if (scenario === undefined) throw new Error(`there is no scenario "${order.scenario}"`);
  const begun = performance.now();
  const { happenings, lines } = order;
  const outcome = await play(scenario, order.seed, {
    outsides,
    ...(happenings !== undefined && { happenings }),
    ...(lines !== undefined && { lines }),
  });
  const answer: Answer = { ...outcome, ms: performance.now() - begun, heap: process.memoryUsage().heapUsed };
  process.send?.(answer);
});
process.on('disconnect', () => process.exit());
process.send?.('ready');
