/**
 * Nodes of a test's Kubernetes that are only words, by kwok: many of them cost nothing, and the API server, the controllers and the
 * scheduler are real. Their pods only seem to start and to go, and the log of each says that an agent waits at its gate. So no figure of
 * theirs is a latency.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { freePort } from './free-port.ts';
import { daemon, type Ground, until } from './kubernetes-daemon.ts';

/** Starts kwok and adds the nodes; resolves once all of them take pods, with what ends their logs. */
export async function pretendNodes(
  ground: Ground,
  count: number,
  apply: (...objects: readonly unknown[]) => Promise<void>,
): Promise<{ end: () => void }> {
  const logs = await logsOfPods(ground);
  const stages = join(ground.home, 'stages.yaml');
  // JSON is a part of YAML.
  writeFileSync(
    stages,
    [nodeIsReady(ground.address, logs.port), podRuns, podGoes].map((stage) => `---\n${JSON.stringify(stage)}\n`).join(''),
  );
  const words = [
    ...[ground.program('kwok'), `--kubeconfig=${join(ground.home, 'admin.kubeconfig')}`, `--config=${stages}`],
    ...['--manage-all-nodes=true', `--server-address=127.0.0.1:${await freePort()}`],
    // Else the controllers take nodes that say nothing for dead.
    '--node-lease-duration-seconds=40',
  ];
  const kwok = daemon(ground, 'kwok', words, async () => true);
  await kwok.start();
  const nodes = Array.from({ length: count }, (_, at) => ({ apiVersion: 'v1', kind: 'Node', metadata: { name: `p${at + 1}` } }));
  for (let from = 0; from < count; from += 500) await apply(...nodes.slice(from, from + 500));
  await until(async () => (await readyNodes(ground)) >= count, `${count} nodes are ready`).catch((error: Error) => {
    logs.end();
    throw new Error(`${error.message}; kwok's last words:\n${kwok.log.slice(-4_000)}`);
  });
  return logs;
}

/** What a kubelet tells of the logs of its pods, for all nodes. */
async function logsOfPods({ home, address }: Ground): Promise<{ port: number; end: () => void }> {
  const pki = (file: string): Buffer => readFileSync(join(home, 'pki', file));
  const server = createServer({ key: pki('kubelet.key'), cert: pki('kubelet.crt') }, (asked, answer) => {
    const { pathname, searchParams } = new URL(asked.url ?? '', 'https://node');
    const agent = /^\/containerLogs\/[^/]+\/oj-([^/]+)\//.exec(pathname)?.[1];
    if (agent === undefined) return void answer.writeHead(404).end();
    const time = searchParams.get('timestamps') === 'true' ? `${new Date().toISOString()} ` : '';
    answer.writeHead(200, { 'content-type': 'text/plain' }).write(`${time}\u001eonejob ready ${agent}\n`);
    if (searchParams.get('follow') !== 'true') answer.end();
  });
  await new Promise<void>((resolve) => server.listen(0, address, resolve));
  return {
    port: (server.address() as AddressInfo).port,
    end() {
      server.close();
      server.closeAllConnections();
    },
  };
}

async function readyNodes({ call }: Ground): Promise<number> {
  const { body } = await call('GET', '/api/v1/nodes');
  const { items = [] } = body as { items?: { status: { conditions?: { type: string; status: string }[] } }[] };
  return items.filter((node) => node.status.conditions?.some(({ type, status }) => type === 'Ready' && status === 'True')).length;
}

const stage = (name: string, kind: 'Node' | 'Pod', matchExpressions: readonly unknown[], next: unknown) => ({
  apiVersion: 'kwok.x-k8s.io/v1alpha1',
  kind: 'Stage',
  metadata: { name },
  spec: { resourceRef: { apiGroup: 'v1', kind }, selector: { matchExpressions }, next },
});

const now = '{{ Now | Quote }}';
const condition = (type: string): string => `- {type: ${type}, status: "True", lastTransitionTime: ${now}}`;
const room = '{cpu: "64", memory: 512Gi, pods: "110", nvidia.com/gpu: "8"}';

const nodeIsReady = (address: string, port: number) =>
  stage(
    'node-is-ready',
    'Node',
    [{ key: '.status.conditions.[] | select( .type == "Ready" ) | .status', operator: 'NotIn', values: ['True'] }],
    {
      statusTemplate: [
        'conditions:',
        `- {type: Ready, status: "True", reason: Pretended, lastHeartbeatTime: ${now}, lastTransitionTime: ${now}}`,
        'addresses:',
        `- {type: InternalIP, address: ${address}}`,
        `daemonEndpoints: {kubeletEndpoint: {Port: ${port}}}`,
        `allocatable: ${room}`,
        `capacity: ${room}`,
      ].join('\n'),
    },
  );

const isDeleted = (operator: 'Exists' | 'DoesNotExist') => ({ key: '.metadata.deletionTimestamp', operator });

const podRuns = stage(
  'pod-runs',
  'Pod',
  [isDeleted('DoesNotExist'), { key: '.status.phase', operator: 'In', values: ['Pending'] }],
  {
    statusTemplate: [
      'conditions:',
      ...['Initialized', 'Ready', 'ContainersReady'].map(condition),
      'containerStatuses:',
      '{{ range .spec.containers }}',
      '- image: {{ .image | Quote }}',
      '  name: {{ .name | Quote }}',
      '  ready: true',
      '  restartCount: 0',
      `  state: {running: {startedAt: ${now}}}`,
      '{{ end }}',
      'phase: Running',
      `startTime: ${now}`,
    ].join('\n'),
  },
);

const podGoes = stage('pod-goes', 'Pod', [isDeleted('Exists')], { finalizers: { empty: true }, delete: true });
