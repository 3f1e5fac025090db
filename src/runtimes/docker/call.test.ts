import { inspect } from 'node:util';
import { expect, test } from 'vitest';
import { connections } from './call.ts';

test('what dockerode writes out of every request stays short, however many connections there are', () => {
  const agent = connections({ kind: 'unix', path: '/run/docker.sock', from: 'test' });
  expect(inspect({ agent }, { showHidden: true, depth: null }).length).toBeLessThan(80);
  agent.destroy();
});
