import { expect, it } from 'vitest';
import { childrenOf } from './process-identity.ts';

it('finds the children of a process, also where the kernel keeps no list of them', () => {
  expect(childrenOf(1, '12 345 ')).toEqual([12, 345]);
  expect(childrenOf(1, '')).toEqual([]);
  // As without CONFIG_PROC_CHILDREN.
  expect(childrenOf(process.ppid, null)).toContain(process.pid);
});
