import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { scratch } from '../../test/support/scratch.ts';
import { hasKernelEnded } from './oom-log.ts';

const id = 'c8cdf8be4ec4'.repeat(5).padEnd(64, '0');
const scope = `/system.slice/docker-${id}.scope`;
const record = (group: string, priority = 6) =>
  `${priority},901,125010000,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0,oom_memcg=${group},task_memcg=${scope},task=tail,pid=1765,uid=0\n SUBSYSTEM=x\n`;

test.each<[string, string, boolean]>([
  ['a group that systemd made', record(scope), true],
  ['a group that the Engine made', record(`/docker/${id}`), true],
  ['a group below: a limit of another container', record(`${scope}/docker/aaaa`), false],
  ['a group above', record('/system.slice'), false],
  ['a container whose id is longer', record(`/docker/${id}0`), false],
  ['another container', record('/system.slice/docker-aaaa.scope'), false],
  ['a program that writes to the log', record(scope, 14), false],
  [
    'a host that ran out of memory',
    `6,1,1,-;oom-kill:constraint=CONSTRAINT_NONE,task_memcg=${scope},task=tail,pid=1,uid=0\n`,
    false,
  ],
])('%s', async (_, lines, found) => {
  using folder = scratch();
  const path = join(folder.path, 'kmsg');
  writeFileSync(path, `6,900,1,-;before\n${lines}6,902,2,-;after\n`);
  expect(await hasKernelEnded(id, path)).toBe(found);
});

test('a log that cannot be read says nothing', async () => {
  expect(await hasKernelEnded(id, '/nowhere/kmsg')).toBe(false);
  expect(await hasKernelEnded(id, '/')).toBe(false);
});
