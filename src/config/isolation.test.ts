import { expect, it } from 'vitest';
import type { RuntimeCapabilities } from '../ports/runtime.ts';
import { isolationProblem } from './check-trust.ts';

const runtime = (holdsSecrets: boolean, weaker: string | null) => ({
  name: 'process',
  capabilities: { holdsSecrets, weaker } as RuntimeCapabilities,
});

it('a CI service gets no sandbox that cannot hold its credentials apart, unless that was given up', () => {
  const pool = { service: 'julia', isolation: 'full' } as const;
  expect(isolationProblem(pool, runtime(true, null))).toBeNull();
  const why = isolationProblem(pool, runtime(false, 'jobs can see each other.'));
  expect(why).toMatch(/process cannot keep credentials of service julia .* \(jobs can see each other\); use "runtime: docker"/);
  expect(why).toContain('"isolation: none"');
  expect(isolationProblem({ ...pool, isolation: 'none' }, runtime(false, null))).toBeNull();
  expect(isolationProblem({ ...pool, service: 'own' }, runtime(false, null))).toBeNull();
});
