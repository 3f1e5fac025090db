/**
 * S3, S4, S5, S7 against a real runtime: the manager is killed at every boundary of intent, effect and record where a job
 * begins and where it ends, then started again. Each job runs at most once and has one result, and nothing is left over.
 * The simulator does that at every effect, in virtual time.
 */
import { describe, test } from 'vitest';
import type { Boundary } from '../../src/manager/actions/action-runner.ts';
import { killAt, members } from '../support/kills.ts';

const acts = ['release', 'settle'] as const;
const boundaries: Boundary[] = acts.flatMap((act) => [`${act}.intent`, `${act}.effect`, `${act}.record`] as const);

describe.each(members)('on $name', ({ missing, pool }) => {
  test.skipIf(missing).each(boundaries)('killed at %s', (boundary) => killAt(boundary, pool));
});
