/**
 * The network policies of the networks `internet` and `none`. A pod that a policy selects has only what its rules allow; rules of several
 * policies add up, so nothing here can forbid what another policy allows. Pure.
 * https://kubernetes.io/docs/concepts/services-networking/network-policies/
 */
import { isIPv6 } from 'node:net';
import { isDeepStrictEqual } from 'node:util';
import { z } from 'zod';
import { type Listen, parseListen } from '../../http/address.ts';
import { blockedRanges } from '../private-ranges.ts';
import { type GuardedNetwork, guardedNetworks } from './config.ts';
import { names } from './pods.ts';

/** null: nothing keeps that network. */
export function guardedOf(network: string): GuardedNetwork | null {
  return guardedNetworks.find((one) => one === network) ?? null;
}

/** All of IPv6 that is globally reachable; what carries addresses of IPv4 inside is not. */
const publicIPv6 = { cidr: '2000::/3', except: ['2001::/23', '2001:db8::/32', '2002::/16', '3fff::/20'] };

const doorsName = 'onejob/doors';

export interface PolicyParts {
  readonly network: GuardedNetwork;
  readonly owner: string;
  readonly lease: { readonly name: string; readonly uid: string };
  /** Of the onejob that they belong to; pods of `internet` may reach them. */
  readonly doors: readonly Listen[];
}

export function policyName(owner: string, network: GuardedNetwork): string {
  return `onejob-${owner}-${network}`;
}

export function policyOf({ network, owner, lease, doors }: PolicyParts) {
  return {
    apiVersion: 'networking.k8s.io/v1',
    kind: 'NetworkPolicy',
    metadata: {
      name: policyName(owner, network),
      labels: { 'app.kubernetes.io/managed-by': 'onejob', [names.owner]: owner, [names.network]: network },
      ...(doors.length > 0 && { annotations: { [doorsName]: doors.map(textOf).join(' ') } }),
      ownerReferences: [{ apiVersion: 'coordination.k8s.io/v1', kind: 'Lease', name: lease.name, uid: lease.uid }],
    },
    spec: {
      podSelector: { matchLabels: { [names.owner]: owner, [names.network]: network } },
      policyTypes: ['Ingress', 'Egress'],
      ...(network === 'internet' && { egress: wayOut(doors) }),
    },
  } as const;
}

function wayOut(doors: readonly Listen[]): object[] {
  const dns = { matchLabels: { 'kubernetes.io/metadata.name': 'kube-system' } };
  return [
    { to: [{ ipBlock: { cidr: '0.0.0.0/0', except: blockedRanges } }, { ipBlock: publicIPv6 }] },
    { to: [{ namespaceSelector: dns }], ports: ['UDP', 'TCP'].map((protocol) => ({ protocol, port: 53 })) },
    ...doors.map(({ host, port }) => ({
      to: [{ ipBlock: { cidr: `${host}/${isIPv6(host) ? 128 : 32}` } }],
      ports: [{ protocol: 'TCP', port }],
    })),
  ];
}

function textOf({ host, port }: Listen): string {
  return isIPv6(host) ? `[${host}]:${port}` : `${host}:${port}`;
}

const policySchema = z.looseObject({
  metadata: z.looseObject({
    uid: z.string(),
    generation: z.number().optional(),
    annotations: z.record(z.string(), z.string()).optional(),
  }),
  spec: z.unknown(),
});

export interface PolicySeen {
  /** Another one when somebody changes what it says. */
  readonly version: string;
  readonly doors: readonly Listen[];
  /** Whether it says exactly what this one does. */
  says(policy: { readonly spec: object }): boolean;
}

/** @throws ZodError for anything else */
export function policySeen(value: unknown): PolicySeen {
  const { metadata, spec } = policySchema.parse(value);
  const written = metadata.annotations?.[doorsName] ?? '';
  return {
    version: `${metadata.uid}/${metadata.generation ?? 0}`,
    doors: written.split(' ').flatMap((one) => parseListen(one) ?? []),
    says: (policy) => isDeepStrictEqual(spec, JSON.parse(JSON.stringify(policy.spec))),
  };
}

/** With one more, unless it is there. */
export function withDoor(doors: readonly Listen[], door: Listen): readonly Listen[] {
  return doors.some((one) => textOf(one) === textOf(door)) ? doors : [...doors, door];
}
