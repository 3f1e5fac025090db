/** Random worlds: moves are drawn by their weights, and made one after the other. */
import fc from 'fast-check';
import { expect } from 'vitest';
import type { World } from '../sim/world.ts';

/** Name, weight, and what it does; `pick` is any number. */
export type Move = readonly [string, number, (world: World, pick: number) => void];

export interface Moves {
  readonly steps: fc.Arbitrary<readonly Step[]>;
  play(world: World, steps: readonly Step[]): void;
  /** Plays them, and looks after each whether the promises hold. */
  playChecked(world: World, steps: readonly Step[]): void;
}

interface Step {
  readonly move: number;
  readonly pick: number;
}

export function movesOf(moves: readonly Move[]): Moves {
  const bag = moves.flatMap(([name, weight, move]) => Array.from({ length: weight }, () => ({ name, move })));
  return {
    steps: fc.array(fc.record({ move: fc.nat(bag.length - 1), pick: fc.nat(1000) }), { maxLength: 120, size: 'max' }),
    play(world, steps) {
      for (const { move, pick } of steps) bag[move]?.move(world, pick);
    },
    playChecked(world, steps) {
      const trail: string[] = [];
      for (const { move, pick } of steps) {
        const step = bag[move];
        if (step === undefined) continue;
        trail.push(step.name);
        step.move(world, pick);
        const broken = world.check();
        // Asked only then: after every step, `expect` and its message take longer than all that is tested.
        if (broken.length > 0) expect(broken, trail.join(', ')).toEqual([]);
      }
    },
  };
}
