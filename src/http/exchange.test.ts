import { expect, test } from 'vitest';
import { networkHint, whyOf } from './exchange.ts';

test('what to look at if a service cannot be reached: in a pod, the NetworkPolicy, too', () => {
  expect(networkHint({})).not.toContain('NetworkPolicy');
  expect(networkHint({ KUBERNETES_SERVICE_HOST: '10.96.0.1' })).toContain('whether the NetworkPolicy of onejob allows its port');
  expect(whyOf('it is away').hint).toBe(networkHint());
});
