/** Numbers that look random and follow the run's seed, for tests that wait or choose by chance. */
import { inject } from 'vitest';
import { seeded } from './seeded.ts';

/** Numbers in [0, 1), like `Math.random`, and the same ones whenever the seed is the same. Only inside vitest. */
export const dice = (): (() => number) => seeded(inject('seed'));
