import { BlockList } from 'node:net';
import { expect, test } from 'vitest';
import type { GuardedNetwork } from './config.ts';
import { policyOf, policySeen, withDoor } from './policy.ts';

const doors = [
  { host: '10.0.0.1', port: 7443 },
  { host: 'fd00::1', port: 700 },
];

const policyWith = (network: GuardedNetwork, open = doors) =>
  policyOf({ network, owner: 'me', lease: { name: 'onejob-me', uid: 'u1' }, doors: open });

interface Rule {
  readonly to: readonly { readonly ipBlock?: { readonly cidr: string; readonly except?: readonly string[] } }[];
  readonly ports?: readonly object[];
}

/** Whether a policy lets a pod reach an address at any port. */
function leads(address: string): boolean {
  const family = address.includes(':') ? 'ipv6' : 'ipv4';
  const holds = (ranges: readonly string[]): boolean => {
    const list = new BlockList();
    for (const range of ranges)
      list.addSubnet(range.split('/')[0] ?? '', Number(range.split('/')[1]), range.includes(':') ? 'ipv6' : 'ipv4');
    return list.check(address, family);
  };
  const rules = (policyWith('internet').spec as { egress: readonly Rule[] }).egress.filter(({ ports }) => ports === undefined);
  const blocks = rules.flatMap(({ to }) => to.flatMap(({ ipBlock }) => ipBlock ?? []));
  return blocks.some(({ cidr, except = [] }) => holds([cidr]) && !holds(except));
}

test.each(['1.1.1.1', '9.255.255.255', '172.32.0.1', '192.167.255.255', '2606:4700::1111', '2a00::1'])(
  'internet leads to %s',
  (address) => {
    expect(leads(address)).toBe(true);
  },
);

test.each([
  [
    '10.0.0.1',
    '10.96.0.1',
    '172.16.0.1',
    '172.31.255.255',
    '192.168.1.1',
    '100.64.0.1',
    '169.254.169.254',
    '127.0.0.1',
    '224.0.0.1',
  ],
  // Those of IPv4 inside others of IPv6, too.
  [
    '::1',
    'fc00::1',
    'fd12::1',
    'fe80::1',
    'ff02::1',
    '::ffff:10.0.0.1',
    '64:ff9b::a00:1',
    '2002:a00:1::1',
    '2001::1',
    '2001:db8::1',
  ],
])('internet does not lead to %s and others', (...addresses) => {
  expect(addresses.filter(leads)).toEqual([]);
});

test('a policy selects the pods of its network and of nobody else, and lets nothing in', () => {
  const { metadata, spec } = policyWith('internet');
  expect(metadata).toMatchObject({
    name: 'onejob-me-internet',
    labels: { 'onejob/owner': 'me', 'onejob/network': 'internet' },
    ownerReferences: [{ kind: 'Lease', name: 'onejob-me', uid: 'u1' }],
  });
  expect(spec).toMatchObject({
    podSelector: { matchLabels: { 'onejob/owner': 'me', 'onejob/network': 'internet' } },
    policyTypes: ['Ingress', 'Egress'],
  });
  expect(spec).not.toHaveProperty('ingress');
});

test('internet leads to name servers of the cluster, and to doors at their port only', () => {
  const { egress } = policyWith('internet').spec as { egress: readonly Rule[] };
  expect(egress.slice(1)).toEqual([
    {
      to: [{ namespaceSelector: { matchLabels: { 'kubernetes.io/metadata.name': 'kube-system' } } }],
      ports: [
        { protocol: 'UDP', port: 53 },
        { protocol: 'TCP', port: 53 },
      ],
    },
    { to: [{ ipBlock: { cidr: '10.0.0.1/32' } }], ports: [{ protocol: 'TCP', port: 7443 }] },
    { to: [{ ipBlock: { cidr: 'fd00::1/128' } }], ports: [{ protocol: 'TCP', port: 700 }] },
  ]);
});

test('none leads nowhere', () => {
  expect(policyWith('none').spec).not.toHaveProperty('egress');
});

test('a policy is known again with its doors, and a changed one is not taken for it', () => {
  const policy = policyWith('internet');
  const answer = { ...policy, metadata: { ...policy.metadata, uid: 'p1', generation: 3 } };
  const seen = policySeen(JSON.parse(JSON.stringify(answer)));
  expect([seen.version, seen.doors, seen.says(policy)]).toEqual(['p1/3', doors, true]);
  expect(seen.says(policyWith('internet', []))).toBe(false);
  expect(policySeen({ ...answer, spec: { ...policy.spec, egress: [{}] } }).says(policy)).toBe(false);
});

test('a door that is open is not opened twice', () => {
  const [first] = doors;
  if (first === undefined) throw new Error('no door');
  expect(withDoor(doors, { ...first })).toBe(doors);
  expect(withDoor([], first)).toEqual([first]);
});
