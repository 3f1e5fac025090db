/** onejob itself in a cluster, by what `deploy/kubernetes` has and docs/kubernetes.md says: as a new user types it. */
import { execFileSync } from 'node:child_process';
import { chownSync, cpSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { packThisClone } from '../support/cloud-machine.ts';
import { images } from '../support/images.ts';
import { type Kubernetes, podSecurity, startKubernetes } from '../support/kubernetes.ts';
import { lacks } from '../support/require.ts';
import { type Scratch, scratch } from '../support/scratch.ts';

const root = join(import.meta.dirname, '../..');

describe.skipIf(lacks('kubernetes', 'busybox'))('onejob in a cluster', () => {
  let cluster: Kubernetes;
  let folder: Scratch;
  beforeAll(async () => {
    folder = scratch();
    using archive = packThisClone();
    const image = join(folder.path, 'image.tar');
    const words = ['scripts/image-manager.ts', '--release', archive.path, '--out', image];
    execFileSync(process.execPath, words, { cwd: root });
    cluster = await startKubernetes();
    await cluster.loadImage(image, 'onejob');
    cpSync(join(root, 'deploy/kubernetes'), join(folder.path, 'kubernetes'), { recursive: true });
  }, 300_000);
  afterAll(async () => {
    await cluster?.[Symbol.asyncDispose]();
    folder?.[Symbol.dispose]();
  });

  /** A namespace that takes only restricted pods, and a volume for its claim: nobody makes volumes here. */
  async function place(name: string): Promise<(...words: string[]) => Promise<string>> {
    await cluster.namespace(name, podSecurity('restricted'));
    const path = join(folder.path, `volume-${name}`);
    mkdirSync(path);
    // The kubelet gives no folder of a node to the group of a pod.
    chownSync(path, 65_532, 65_532);
    await cluster.apply({
      apiVersion: 'v1',
      kind: 'PersistentVolume',
      metadata: { name },
      spec: {
        capacity: { storage: '10Gi' },
        accessModes: ['ReadWriteOnce'],
        hostPath: { path },
        claimRef: { namespace: name, name: 'onejob' },
      },
    });
    return (...words) => cluster.kubectl('--namespace', name, ...words);
  }

  test('by Kustomize', async () => {
    const kubectl = await place('ci');
    const overlay = join(folder.path, 'overlay');
    mkdirSync(overlay);
    const { hostname, port } = new URL(cluster.server);
    // This cluster has no services, and so not the address of the API server that pods are told.
    const env = [
      { name: 'KUBERNETES_SERVICE_HOST', value: hostname },
      { name: 'KUBERNETES_SERVICE_PORT', value: port },
    ];
    const write = (config: string): void => {
      writeFileSync(join(overlay, 'config.yml'), config);
      writeFileSync(
        join(overlay, 'kustomization.yaml'),
        JSON.stringify({
          namespace: 'ci',
          resources: ['../kubernetes/base'],
          configMapGenerator: [{ name: 'onejob', behavior: 'replace', files: ['config.yml'] }],
          patches: [
            {
              target: { kind: 'Deployment' },
              patch: JSON.stringify([{ op: 'add', path: '/spec/template/spec/containers/0/env', value: env }]),
            },
          ],
        }),
      );
    };
    const config = readFileSync(join(root, 'deploy/kubernetes/base/config.yml'), 'utf8').replace(
      'image: debian:stable-slim',
      `image: ${images.base}, pull: never`.replace(', ', '\n    '),
    );
    write(config);
    await kubectl('apply', '-k', overlay);
    await kubectl('rollout', 'status', 'deployment/onejob', '--timeout=120s').catch(async (error: unknown) => {
      throw new Error(
        `${error}\n${await kubectl('describe', 'pods')}\n${await kubectl('logs', 'deployment/onejob').catch(String)}`,
      );
    });
    const exec = (...words: string[]) => kubectl('exec', 'deployment/onejob', '--', 'onejob', ...words);
    expect(await exec('run', '--no-workspace', '--', 'echo', 'hello')).toBe('hello\n');
    console.log(await exec('doctor'));
  });
});
