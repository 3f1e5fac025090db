/**
 * Keeps the network policies of a test's Kubernetes, as the networks of most sites do: what CNI's own plugins make keeps none, and
 * keepers that others wrote need queues of nftables, which this kernel may lack. Named ports are not known here.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { type Ground, toEnd } from './kubernetes-daemon.ts';
import type { KubernetesNode } from './kubernetes-node.ts';

type Labels = Readonly<Record<string, string>>;

interface Selector {
  readonly matchLabels?: Labels;
  readonly matchExpressions?: readonly { readonly key: string; readonly operator: string; readonly values?: readonly string[] }[];
}

interface Peer {
  readonly podSelector?: Selector;
  readonly namespaceSelector?: Selector;
  readonly ipBlock?: { readonly cidr: string; readonly except?: readonly string[] };
}

interface Port {
  readonly protocol?: string;
  readonly port?: number;
  readonly endPort?: number;
}

interface Metadata {
  readonly name: string;
  readonly namespace: string;
  readonly labels?: Labels;
}

interface Policy {
  readonly metadata: Metadata;
  readonly spec: {
    readonly podSelector?: Selector;
    readonly policyTypes?: readonly string[];
    readonly ingress?: readonly { readonly from?: readonly Peer[]; readonly ports?: readonly Port[] }[];
    readonly egress?: readonly { readonly to?: readonly Peer[]; readonly ports?: readonly Port[] }[];
  };
}

interface Pod {
  readonly metadata: Metadata;
  readonly spec: { readonly hostNetwork?: boolean };
  readonly status: { readonly phase: string; readonly podIP?: string };
}

interface World {
  readonly policies: readonly Policy[];
  readonly pods: readonly Pod[];
  readonly namespaces: readonly { readonly metadata: Metadata }[];
}

/** Looks five times a second, until it is told to end; the last look has then ended. */
export function keepPolicies(ground: Ground, nodes: readonly KubernetesNode[]): { end(): Promise<void> } {
  const ended = new AbortController();
  let kept = '';
  async function look(): Promise<void> {
    const [policies, pods, namespaces] = await Promise.all(
      ['/apis/networking.k8s.io/v1/networkpolicies', '/api/v1/pods', '/api/v1/namespaces'].map((path) => ground.call('GET', path)),
    );
    if (policies?.status !== 200 || pods?.status !== 200 || namespaces?.status !== 200) return;
    const items = <Kind>({ body }: { readonly body: unknown }): Kind[] => (body as { items: Kind[] }).items;
    const rules = rulesOf({ policies: items(policies), pods: items(pods), namespaces: items(namespaces) });
    if (rules === kept) return;
    for (const { space } of nodes)
      await toEnd(ground, ['nsenter', `--target=${space}`, '--mount', '--net', 'iptables-restore'], rules);
    kept = rules;
  }
  const loop = (async () => {
    while (!ended.signal.aborted) {
      // An API server that was killed comes back, and a pod is not known to all at once.
      await look().catch(() => {});
      await sleep(200, undefined, { signal: ended.signal }).catch(() => {});
    }
  })();
  return {
    async end() {
      ended.abort();
      await loop;
    },
  };
}

/** All rules of a node, as `iptables-restore` reads them. A packet that somebody allows is marked, and one without the mark dropped. */
function rulesOf(world: World): string {
  const chains: string[] = [];
  const rules = ['-A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT'];
  for (const pod of world.pods) {
    if (!hasAddress(pod)) continue;
    const own = world.policies.filter(
      ({ metadata, spec }) => isOwn(metadata, pod) && selects(spec.podSelector ?? {}, pod.metadata),
    );
    for (const [type, near, far] of [
      ['Egress', '-s', '-d'],
      ['Ingress', '-d', '-s'],
    ] as const) {
      const about = own.filter(({ spec }) => typesOf(spec).includes(type));
      if (about.length === 0) continue;
      const chain = `pod-${chains.length}`;
      chains.push(chain);
      rules.push(`-A FORWARD ${near} ${pod.status.podIP} -j ${chain}`, `-A ${chain} -j MARK --set-mark 0`);
      for (const { metadata, spec } of about) {
        const allowed =
          type === 'Egress'
            ? (spec.egress ?? []).map(({ to, ports }) => ({ peers: to, ports }))
            : (spec.ingress ?? []).map(({ from, ports }) => ({ peers: from, ports }));
        for (const { peers, ports } of allowed)
          for (const { match, but } of rangesOf(peers, metadata.namespace, world))
            for (const port of portsOf(ports)) {
              const inner = `pod-${chains.length}`;
              chains.push(inner);
              rules.push(`-A ${chain} ${match === '' ? '' : `${far} ${match} `}${port}-j ${inner}`);
              rules.push(...but.map((range) => `-A ${inner} ${far} ${range} -j RETURN`), `-A ${inner} -j MARK --set-mark 1`);
            }
      }
      rules.push(`-A ${chain} -m mark ! --mark 1 -j DROP`);
    }
  }
  return ['*filter', ':FORWARD ACCEPT [0:0]', ...chains.map((chain) => `:${chain} - [0:0]`), ...rules, 'COMMIT', ''].join('\n');
}

const hasAddress = ({ spec, status }: Pod): boolean =>
  spec.hostNetwork !== true && status.podIP !== undefined && !['Succeeded', 'Failed'].includes(status.phase);

const isOwn = ({ namespace }: Metadata, pod: Pod): boolean => pod.metadata.namespace === namespace;

const typesOf = ({ policyTypes, egress }: Policy['spec']): readonly string[] =>
  policyTypes ?? (egress === undefined ? ['Ingress'] : ['Ingress', 'Egress']);

/** Addresses of peers, each with those that it leaves out; all of them when no peer is named. */
function rangesOf(
  peers: readonly Peer[] | undefined,
  namespace: string,
  world: World,
): { match: string; but: readonly string[] }[] {
  if (peers === undefined || peers.length === 0) return [{ match: '', but: [] }];
  return peers.flatMap(({ ipBlock, podSelector, namespaceSelector }) => {
    // No pod here has an address of IPv6.
    if (ipBlock?.cidr.includes(':') === true) return [];
    if (ipBlock !== undefined) return [{ match: ipBlock.cidr, but: ipBlock.except ?? [] }];
    const spaces =
      namespaceSelector === undefined
        ? [namespace]
        : world.namespaces.filter(({ metadata }) => selects(namespaceSelector, metadata)).map(({ metadata }) => metadata.name);
    const chosen = world.pods.filter(
      (pod) => hasAddress(pod) && spaces.includes(pod.metadata.namespace) && selects(podSelector ?? {}, pod.metadata),
    );
    return chosen.map(({ status }) => ({ match: `${status.podIP}`, but: [] }));
  });
}

function portsOf(ports: readonly Port[] | undefined): string[] {
  if (ports === undefined || ports.length === 0) return [''];
  return ports.map(({ protocol = 'TCP', port, endPort }) => {
    if (typeof port === 'string') throw new Error(`named ports are not known here: ${port}`);
    const range = port === undefined ? '' : `--dport ${port}${endPort === undefined ? '' : `:${endPort}`} `;
    return `-p ${protocol.toLowerCase()} ${range}`;
  });
}

function selects({ matchLabels = {}, matchExpressions = [] }: Selector, { labels = {} }: Metadata): boolean {
  const fits = ({ key, operator, values = [] }: NonNullable<Selector['matchExpressions']>[number]): boolean => {
    const value = labels[key];
    if (operator === 'Exists') return value !== undefined;
    if (operator === 'DoesNotExist') return value === undefined;
    const isIn = value !== undefined && values.includes(value);
    return operator === 'In' ? isIn : !isIn;
  };
  return Object.entries(matchLabels).every(([key, value]) => labels[key] === value) && matchExpressions.every(fits);
}
