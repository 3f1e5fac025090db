/** For tests of `mode: acquire`: the manager of `testing-manager.ts`, with the Stacks API in memory. */
import type { AgentId } from '../../core/slot.ts';
import { createAcquire } from './acquire.ts';
import { rule } from './ruling.ts';
import { createStackEntries } from './stack-entries.ts';
import { type Manager, type ManagerOptions, openManager, testConfig } from './testing-manager.ts';
import { type FakeStacks, fakeStacks } from './testing-stacks.ts';

export interface Acquiring extends Manager {
  readonly stacks: FakeStacks;
  /** Agents that slots have. */
  readonly live: Set<AgentId>;
}

export function openAcquiring({
  stacks = fakeStacks(),
  ...options
}: ManagerOptions & { readonly stacks?: FakeStacks } = {}): Acquiring {
  const live = new Set<AgentId>();
  const made = openManager({
    ...options,
    parts: { config: testConfig({ mode: 'acquire' }), ...options.parts },
    make: (parts, store) =>
      createAcquire({
        ...parts,
        stacks,
        entries: createStackEntries({
          service: 'bk',
          host: 'box',
          version: '1.0.0',
          store,
          stacks,
          wall: () => parts.clock.wall(),
        }),
        host: 'box',
        isLive: (agent) => live.has(agent),
        // A slot has one agent here, and a job at most.
        agentOf: (slot, job) => (parts.jobsOf(slot).includes(job) ? ([...live][0] ?? null) : null),
        rule: (job, pool) =>
          rule(job, {
            ...{ trust: pool.trust, keys: async () => null },
            pins: { of: () => [], first: (_, pipeline) => [pipeline] },
          }),
        random: () => 0,
      }),
  });
  made.broker.up();
  return Object.assign(made, { stacks, live });
}
