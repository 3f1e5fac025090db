/** Properties draw by the run's seed, which `setup.ts` chose: the same examples whenever the seed is the same. */
import fc from 'fast-check';
import { beforeEach, inject } from 'vitest';
import { writeTo } from './drawn.ts';

fc.configureGlobal({ seed: inject('seed') });

beforeEach(({ task }) => writeTo(task.meta));
