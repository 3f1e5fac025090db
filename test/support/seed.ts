/** Properties draw the same examples in every run of one tree: the gate sets the seed, other runs draw a new one. */
import fc from 'fast-check';

const seed = process.env.ONEJOB_TEST_SEED;
if (seed !== undefined) fc.configureGlobal({ seed: Number(seed) | 0 });
