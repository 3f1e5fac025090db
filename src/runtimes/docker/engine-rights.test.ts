import { expect, it } from 'vitest';
import { engineSeccomp } from './engine-rights.ts';

interface Rule {
  readonly names: readonly string[];
  readonly action: string;
  readonly args?: readonly unknown[];
}

const rulesOf = (profile?: Parameters<typeof engineSeccomp>[0]) =>
  (JSON.parse(engineSeccomp(profile)) as { readonly syscalls: readonly Rule[] }).syscalls;

it('engines may make namespaces and mounts, without a rule of the default that says otherwise', () => {
  for (const name of ['clone', 'clone3', 'unshare', 'mount', 'keyctl']) {
    const alone = rulesOf().filter(({ names }) => names.includes(name) && names.length === 1);
    expect(alone).toEqual([]);
    expect(rulesOf()[0]).toMatchObject({ names: expect.arrayContaining([name]), action: 'SCMP_ACT_ALLOW' });
  }
});

it.each(['bpf', 'perf_event_open', 'open_by_handle_at', 'reboot', 'finit_module', 'kexec_load', 'io_uring_setup', 'userfaultfd'])(
  'nothing is added that engines do not need: %s',
  (name) => {
    const free = rulesOf().filter((rule) => rule.names.includes(name) && !('includes' in rule) && rule.action === 'SCMP_ACT_ALLOW');
    expect(free).toEqual([]);
  },
);

it('what else is in the default stays', () => {
  const other = { names: ['read', 'clone'], action: 'SCMP_ACT_ALLOW' };
  expect(rulesOf({ syscalls: [other, { names: ['clone'] }] }).slice(1)).toEqual([other]);
});
