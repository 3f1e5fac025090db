/** Every key of the map `kubernetes` of a pool. `docs/configuration/` is printed from here. */
import { key } from '../schema/key.ts';

/** Names of objects. https://kubernetes.io/docs/concepts/overview/working-with-objects/names/ */
const objectName = /^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$/;
/** Names of labels, taints and resources, with or without a prefix. */
const qualified = /^([a-z0-9]([-a-z0-9.]*[a-z0-9])?\/)?[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?$/;

export const kubernetesPoolKeys = {
  resource: key((v) => v.text('the name of a resource such as "nvidia.com/mig-1g.10gb"', qualified), 'nvidia.com/gpu', {
    description: 'What the cluster calls a GPU: `devices` asks for so many of it.',
    example: 'nvidia.com/mig-1g.10gb',
  }),
  claim: key((v) => v.text('the name of a ResourceClaimTemplate', objectName), undefined, {
    description:
      'A ResourceClaimTemplate of the namespace, where devices are granted by dynamic resource allocation. It says itself how many: `devices` is then only what onejob expects to see.',
    example: 'one-h100',
    shown: 'none',
  }),
  node_selector: key((v) => v.environment, {}, 'map', {
    description: 'Labels that the node must have.',
    example: '{ gpu: a100 }',
    shown: 'none',
  }),
  tolerations: key((v) => v.z.array(v.z.record(v.z.string(), v.z.unknown())), [] as never[], 'list of tolerations', {
    description: 'Taints that the agents tolerate, as a pod has them.',
    example: '[{ key: nvidia.com/gpu, operator: Exists }]',
    shown: 'none',
  }),
  priority_class: key((v) => v.text('the name of a PriorityClass', objectName), undefined, {
    description: 'Which pods go first, and may take the place of others.',
    example: 'ci',
    shown: "the cluster's",
  }),
  runtime_class: key((v) => v.text('the name of a RuntimeClass', objectName), undefined, {
    description: 'Which container runtime, such as gVisor.',
    example: 'gvisor',
    shown: "the cluster's",
  }),
  service_account: key((v) => v.text('the name of a ServiceAccount', objectName), undefined, {
    description: 'Service account of the pods. Its token is never in them; it may bring pull secrets.',
    example: 'ci-jobs',
    shown: '`default`',
  }),
  pull_secrets: key((v) => v.z.array(v.text('the name of a Secret', objectName)), [] as never[], {
    description: 'Secrets of the namespace with which the nodes pull the image.',
    example: '[registry]',
    shown: 'none',
  }),
  queue: key((v) => v.text('the name of a LocalQueue', objectName), undefined, {
    description: 'The LocalQueue of [Kueue](https://kueue.sigs.k8s.io/) in which the agents wait for their quota.',
    example: 'gpu-ci',
    shown: 'none',
  }),
  claims: key((v) => v.z.array(v.claim), [] as never[], 'list of `CLAIM:CONTAINER[:ro|rw]`', {
    description: 'PersistentVolumeClaims of the namespace that jobs see, read-only unless `rw` is written.',
    example: '["imagenet:/datasets/imagenet"]',
    shown: 'none',
  }),
  security: key((v) => v.oneOf(['baseline', 'restricted']), 'baseline', {
    description:
      'Which of the [Pod Security Standards](https://kubernetes.io/docs/concepts/security/pod-security-standards/) the pods keep. With `restricted` the job is not root, gains no rights and has no capabilities.',
    example: 'restricted',
  }),
  pod: key((v) => v.z.record(v.z.string(), v.z.unknown()), undefined, 'map', {
    description:
      'Merged into the pod: for what has no key here. Maps are merged, lists are replaced, except those of things with a name. The container of the job is `job`.',
    example: '{ spec: { schedulerName: volcano } }',
    shown: 'none',
  }),
};
