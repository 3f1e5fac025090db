/** onejob itself in a cluster, by what `deploy/kubernetes` has: every command of docs/kubernetes.md, as a new user types it. */
import { execFile, execFileSync } from 'node:child_process';
import { chownSync, copyFileSync, cpSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { get } from 'node:https';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { parse, parseAllDocuments } from 'yaml';
import { buildkiteBench } from '../support/buildkite.ts';
import { fork, theAgent } from '../support/buildkite-days.ts';
import { packThisClone } from '../support/cloud-machine.ts';
import { images } from '../support/images.ts';
import { type Kubernetes, podSecurity, startKubernetes } from '../support/kubernetes.ts';
import { kubernetesProgram } from '../support/kubernetes-programs.ts';
import { defaultImage, lacks } from '../support/require.ts';
import { type Scratch, scratch } from '../support/scratch.ts';
import { createAuthority } from '../support/tls-front.ts';

const root = join(import.meta.dirname, '../..');
const page = readFileSync(join(root, 'docs/kubernetes.md'), 'utf8');
const consoles = [...page.matchAll(/^```console\n(.*?)^```$/gms)].map(([, block = '']) => block);
const commands = consoles.flatMap((block) => [...block.matchAll(/^\$ (.+)$/gm)].map(([, line = '']) => line));

/** A file of the page, by the name in its first line. */
function fileOf(name: string): string {
  const [, text = ''] = new RegExp(`^\`\`\`yaml\\n(# ${name}\\n.*?)^\`\`\`$`, 'ms').exec(page) ?? [];
  return text;
}

/** What the tests have typed so far. */
const typed = new Set<string>();

type Typed = (command: string) => Promise<string>;

describe.skipIf(lacks('kubernetesNetwork', 'busybox'))('onejob in a cluster', () => {
  let cluster: Kubernetes;
  let folder: Scratch;
  beforeAll(async () => {
    folder = scratch();
    using archive = packThisClone();
    const image = join(folder.path, 'image.tar');
    const words = ['--release', archive.path, '--out', image, '--name', 'registry.example.org/onejob'];
    execFileSync(process.execPath, ['scripts/image-manager.ts', ...words], { cwd: root });
    cluster = await startKubernetes({ network: true });
    await cluster.loadImage(image, 'onejob');
    cpSync(join(root, 'deploy/kubernetes'), join(folder.path, 'kubernetes'), { recursive: true });
    mkdirSync(join(folder.path, 'bin'));
    for (const name of ['kubectl', 'helm'] as const) symlinkSync(kubernetesProgram(name), join(folder.path, 'bin', name));
  }, 300_000);
  afterAll(async () => {
    await cluster?.[Symbol.asyncDispose]();
    folder?.[Symbol.dispose]();
  });

  /** A namespace that takes only restricted pods, a volume for its claim, and a folder with a config in which to type. */
  async function place(namespace: string): Promise<{ type: Typed; write(name: string, text: string): void }> {
    await cluster.namespace(namespace, podSecurity('restricted'));
    const path = join(folder.path, `volume-${namespace}`);
    mkdirSync(path);
    // The kubelet gives no folder of a node to the group of a pod.
    chownSync(path, 65_532, 65_532);
    const claimRef = { namespace, name: 'onejob' };
    const spec = { capacity: { storage: '10Gi' }, accessModes: ['ReadWriteOnce'], hostPath: { path }, claimRef };
    await cluster.apply({ apiVersion: 'v1', kind: 'PersistentVolume', metadata: { name: namespace }, spec });
    const cwd = join(folder.path, namespace);
    mkdirSync(cwd);
    const vars = { HOME: cwd, KUBECONFIG: cluster.kubeconfig, PATH: `${folder.path}/bin:${process.env.PATH}` };
    return {
      async type(command) {
        typed.add(command);
        const here = command.replace('-n ci ', `-n ${namespace} `);
        try {
          return (await promisify(execFile)('sh', ['-c', here], { cwd, env: vars })).stdout;
        } catch (error) {
          const more = await cluster.kubectl('-n', namespace, 'describe', 'pods').catch(String);
          const log = await cluster.kubectl('-n', namespace, 'logs', 'deployment/onejob').catch(String);
          throw new Error(`${here}: ${error}\n${more.slice(-3_000)}\n${log.slice(-3_000)}`);
        }
      },
      write: (name, text) => writeFileSync(join(cwd, name), text),
    };
  }

  const config = (agents: number): string =>
    fileOf('config.yml')
      .replace('image: debian:stable-slim', `image: "${images.base}"\n    pull: never`)
      .replace('agents: 16', `agents: ${agents}`);
  const find = (start: string, nth = 0): string => {
    const found = commands.filter((command) => command.startsWith(start))[nth];
    if (found === undefined) throw new Error(`the page has no command ${start}`);
    return found;
  };
  const exec = 'kubectl -n ci exec deployment/onejob --';
  const inPod = `${exec} onejob`;

  /** A job that ends with 3 once its file `go` is there. */
  async function begin(type: Typed): Promise<{ id: string; end(): Promise<void> }> {
    const script = 'echo begun; until [ -e /workspace/go ]; do sleep 0.1; done; echo done; exit 3';
    const id = (await type(`${inPod} run --detach --no-workspace -- sh -c '${script}'`)).trim();
    await expect.poll(() => type(`${inPod} logs ${id}`), { timeout: 60_000 }).toBe('begun\n');
    return {
      id,
      async end() {
        const pod = (await type('kubectl -n ci get pods -l onejob/agent -o name')).trim();
        await type(`kubectl -n ci exec ${pod} -- touch /workspace/go`);
        expect(await type(`${inPod} wait ${id} >&2; echo $?`)).toBe('3\n');
        expect(await type(`${inPod} logs ${id}`)).toBe('begun\ndone\n');
      },
    };
  }

  const left = async (type: Typed): Promise<string[]> => {
    const kinds = 'deployments,replicasets,pods,configmaps,secrets,services,networkpolicies,roles,rolebindings,leases';
    const all = await type(`kubectl -n ci get ${kinds},serviceaccounts,persistentvolumeclaims -o name`);
    return all.split('\n').filter((name) => !['', 'configmap/kube-root-ca.crt', 'serviceaccount/default'].includes(name));
  };
  const claim = ['persistentvolumeclaim/onejob'];
  /** What people made by hand. */
  const secrets = ['onejob', 'onejob-read-token', 'onejob-tls'].map((name) => `secret/${name}`);
  const agentsOf = async (type: Typed): Promise<number> =>
    (JSON.parse(await type(`${inPod} status --json`)) as { pools: { slots: unknown[] }[] }).pools[0]?.slots.length ?? 0;

  test('by Kustomize', async () => {
    const { type, write } = await place('ci');
    write('kustomization.yaml', fileOf('kustomization.yaml'));
    write('config.yml', config(16));
    const [apply, ready] = [find('kubectl apply'), find('kubectl -n ci rollout status')];
    await type(apply);
    await type(ready);
    expect(await type(find(`${inPod} doctor`))).toMatch(/^0 errors, 0 warnings/m);
    expect(await type(find(`${inPod} run`))).toBe('hello\n');
    const job = await begin(type);
    const authority = createAuthority(folder.path);
    const { key, cert } = authority.issue('onejob.ci.svc');
    const stringData = { 'tls.crt': cert, 'tls.key': key, 'ca.crt': authority.certificate };
    await cluster.apply({ apiVersion: 'v1', kind: 'Secret', metadata: { name: 'onejob-tls', namespace: 'ci' }, stringData });
    write('github.token', 'ghp_of-nobody');
    await type(find('kubectl -n ci create secret generic onejob '));
    const components = ['../kubernetes/metrics'];
    write('kustomization.yaml', JSON.stringify({ ...parse(fileOf('kustomization.yaml')), components }));
    write('config.yml', config(17).replace(/^api: .*\n/m, fileOf('config.yml, instead of its "api"')));
    await type(apply);
    await type(ready);
    expect(await agentsOf(type)).toBe(17);
    expect(await type(`${exec} cat /etc/onejob-secrets/github.token`)).toBe('ghp_of-nobody');
    for (const nth of [0, 1]) await type(commands[commands.indexOf(find(`${exec} cat `)) + nth] ?? '');
    const token = await type('kubectl -n ci get secret onejob-read-token -o "jsonpath={.data.token}" | base64 -d');
    const ip = await type('kubectl -n ci get pods -l app.kubernetes.io/name=onejob -o "jsonpath={.items[0].status.podIP}"');
    expect(await metrics(ip, authority.certificate, token)).toMatch(/^onejob_/m);
    await type(find('kubectl -n ci rollout undo'));
    await type(ready);
    expect(await agentsOf(type)).toBe(16);
    await job.end();
    await begin(type);
    for (const nth of [0, 1, 2]) await type(find('kubectl -n ci delete', nth));
    await expect.poll(() => left(type), { timeout: 60_000 }).toEqual([...secrets, ...claim]);
  });

  test.skipIf(lacks('helm'))('by Helm', async () => {
    const { type, write } = await place('charts');
    const image = { repository: 'registry.example.org/onejob' };
    write('values.yaml', JSON.stringify({ image }));
    write('config.yml', config(16));
    const upgrade = find('helm -n ci upgrade');
    await type(upgrade);
    expect(await type(find(`${inPod} run`))).toBe('hello\n');
    const job = await begin(type);
    write('config.yml', config(17));
    await type(upgrade);
    expect(await agentsOf(type)).toBe(17);
    await type(find('helm -n ci rollback'));
    expect(await agentsOf(type)).toBe(16);
    await job.end();
    await type(find('helm -n ci uninstall'));
    await type(find('kubectl -n ci delete leases'));
    await expect.poll(() => left(type), { timeout: 60_000 }).toEqual(claim);
  });

  describe.skipIf(lacks('docker', 'image', 'buildkiteAgent', 'openssl'))('with agents of a service', () => {
    beforeAll(() => cluster.loadDockerImage(defaultImage));

    test('by Kustomize', async () => {
      const { type, write } = await place('by-kustomize');
      write('kustomization.yaml', JSON.stringify({ ...parse(fileOf('kustomization.yaml')), namespace: 'by-kustomize' }));
      await service('by-kustomize', async (text) => {
        write('config.yml', text);
        await type(find('kubectl apply'));
        await type(find('kubectl -n ci rollout status'));
      });
    });

    test.skipIf(lacks('helm'))('by Helm', async () => {
      const { type, write } = await place('by-helm');
      write('values.yaml', JSON.stringify({ image: { repository: 'registry.example.org/onejob' } }));
      await service('by-helm', async (text) => {
        write('config.yml', text);
        await type(find('helm -n ci upgrade'));
      });
    });

    /** A stranger's job, which goes on while onejob gets another pod with another address. */
    async function service(namespace: string, install: (config: string) => Promise<void>): Promise<void> {
      const kubectl = (...words: string[]): Promise<string> => cluster.kubectl('-n', namespace, ...words);
      const own = (path: string): Promise<string> =>
        kubectl('get', 'pods', '-l', 'app.kubernetes.io/name=onejob', '-o', `jsonpath={.items[0]${path}}`);
      await using bench = await buildkiteBench(theAgent(), { host: cluster.address, publicHost: cluster.address, port: 443 });
      const { buildkite } = bench;
      const stringData = { buildkite: buildkite.token };
      await cluster.apply({ apiVersion: 'v1', kind: 'Secret', metadata: { name: 'onejob', namespace }, stringData });
      copyFileSync(theAgent(), join(folder.path, `volume-${namespace}`, 'agent'));
      await install(config(1));
      const ip = await kubectl('get', 'service', 'onejob', '-o', 'jsonpath={.spec.clusterIP}');
      const [top = ''] = config(1).split('\npools:');
      // This cluster has no name server.
      const pod = { spec: { hostAliases: [{ ip, hostnames: ['onejob'] }] } };
      await install(`${top}
services: { bk: { type: buildkite, endpoint: "${buildkite.endpoint}", token: { file: /etc/onejob-secrets/buildkite }, poll: 2s, agent: { from: /var/lib/onejob/agent } } }
pools: { bk: { service: bk, queue: default, runtime: cluster, agents: 1, image: "${defaultImage}", pull: never, user: "1000", kubernetes: { security: restricted, pod: ${JSON.stringify(pod)} } } }
`);
      const command = [
        'reach() { timeout 3 bash -c "exec 3<>/dev/tcp/$2/$3" 2>/dev/null && echo "$1: reached" || echo "$1: not reached"; }',
        'reach onejob onejob 7443; reach api 10.96.0.1 443',
        `reach buildkite ${cluster.address} 443; echo "at: $BUILDKITE_AGENT_ENDPOINT"`,
        'echo begun; until [ -e /workspace/go ]; do sleep 0.1; done',
        'buildkite-agent meta-data set told yes; echo "told: $(buildkite-agent meta-data get told)"; exit 3',
      ].join('\n');
      const id = buildkite.queueJob({ command, ...fork });
      // It has tried first whether the cluster keeps policies.
      await expect.poll(() => buildkite.job(id).log, { timeout: 120_000 }).toMatch(/^begun$/m);
      const before = await own('.status.podIP');
      await kubectl('rollout', 'restart', 'deployment/onejob');
      await kubectl('rollout', 'status', 'deployment/onejob');
      expect(await own('.status.podIP')).not.toBe(before);
      await kubectl(
        'exec',
        (await kubectl('get', 'pods', '-l', 'onejob/agent', '-o', 'name')).trim(),
        '--',
        'touch',
        '/workspace/go',
      );
      const { exit, log } = await buildkite.jobEnded(id);
      expect([exit, log.match(/^\w+: .*$/gm)?.map((line) => line.trim())], log).toEqual([
        3,
        ['onejob: reached', 'api: not reached', 'buildkite: not reached', 'at: https://onejob:7443/v3', 'told: yes'],
      ]);
      // It looks at its agent again first.
      const doctor = () => kubectl('exec', 'deployment/onejob', '--', 'onejob', 'doctor');
      await expect.poll(doctor, { timeout: 60_000 }).toMatch(/^0 errors, 0 warnings/m);
      await kubectl('delete', '--cascade=foreground', 'deployment', 'onejob');
    }
  });

  test.skipIf(lacks('helm'))('all commands of the page were typed', () => {
    expect(commands.filter((command) => !typed.has(command))).toEqual([]);
  });
});

test.skipIf(lacks('kubernetes', 'helm'))('Kustomize and Helm install the same', () => {
  using folder = scratch();
  const run = (name: 'kubectl' | 'helm', ...words: string[]): string =>
    execFileSync(kubernetesProgram(name), words, { encoding: 'utf8', env: { HOME: folder.path } });
  const own = join(folder.path, 'own');
  mkdirSync(own);
  cpSync(join(root, 'deploy/kubernetes'), join(folder.path, 'kubernetes'), { recursive: true });
  const both = ['metrics', 'monitor'];
  for (const parts of [[], both]) {
    const components = parts.map((name) => `../kubernetes/${name}`);
    writeFileSync(
      join(own, 'kustomization.yaml'),
      JSON.stringify({ namespace: 'ci', resources: ['../kubernetes/base'], components }),
    );
    const sets = `metrics.enabled=${parts === both},metrics.monitor=${parts === both}`;
    const chart = run('helm', '--namespace', 'ci', 'template', 'onejob', join(folder.path, 'kubernetes/chart'), '--set', sets);
    expect(objectsIn(chart)).toEqual(objectsIn(run('kubectl', 'kustomize', own)));
  }
});

/** As Prometheus asks: by the name of the Service, at the address of the pod. */
function metrics(host: string, ca: string, token: string): Promise<string> {
  const headers = { host: 'onejob.ci.svc:8443', authorization: `Bearer ${token.trim()}` };
  return new Promise((resolve, reject) => {
    get({ host, port: 8443, path: '/metrics', ca, servername: 'onejob.ci.svc', headers, agent: false }, (answer) => {
      text(answer).then(resolve, reject);
    }).on('error', reject);
  });
}

/** Objects by kind, without what only one of the two writes: labels, hashes, what is so by default, where the namespace is. */
function objectsIn(yaml: string): unknown {
  const bare = yaml.replaceAll(/\bonejob-[a-z0-9]{10}\b/g, 'onejob').replaceAll(/onejob\.(?:\$1|ci)\.svc/g, 'onejob.NAMESPACE.svc');
  const own = ['labels', 'annotations', 'matchLabels', 'imagePullPolicy', 'namespace', 'sourceLabels'];
  const plain = (key: string, value: unknown): unknown => (own.includes(key) ? undefined : value);
  const objects = parseAllDocuments(bare).map((document) => JSON.parse(JSON.stringify(document.toJS(), plain)));
  return Object.fromEntries(
    objects.map((object) => {
      if (object.kind === 'Service') delete object.spec.selector;
      if (object.kind === 'ConfigMap') object.data = parse(object.data['config.yml']);
      return [`${object.kind} ${object.metadata.name}`, object];
    }),
  );
}
