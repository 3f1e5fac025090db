/** What `doctor` says of a runtime of type kubernetes. Changes nothing. */
import { z } from 'zod';
import { toFailure } from '../../base/errors.ts';
import { type Finding, fine, problem, warning } from '../../base/finding.ts';
import { parseNamed } from '../../http/address.ts';
import { type AvoidedNodes, avoidedFindings } from '../avoided.ts';
import { type KubeClient, noNamespace, refusalOf } from './client.ts';
import { podAccount } from './kubeconfig.ts';
import type { Proof } from './networks.ts';

interface CheckParts {
  readonly name: string;
  /** Of the config. */
  readonly address: string | null;
  readonly client: KubeClient;
  readonly avoided: AvoidedNodes['now'];
  readonly networks: readonly Proof[];
}

interface Right {
  readonly group: string;
  readonly resource: string;
  readonly verbs: readonly string[];
}

/** What onejob does with the API, in the namespace of the agents. A test holds deploy/kubernetes to the same. */
export const rights: readonly Right[] = [
  { group: '', resource: 'pods', verbs: ['create', 'get', 'list', 'watch', 'delete'] },
  { group: '', resource: 'pods/log', verbs: ['get'] },
  // A WebSocket is a GET; newer servers ask for create.
  { group: '', resource: 'pods/attach', verbs: ['create', 'get'] },
  { group: '', resource: 'pods/exec', verbs: ['create', 'get'] },
  { group: 'coordination.k8s.io', resource: 'leases', verbs: ['create', 'get', 'delete'] },
];

/** More, for the networks `internet` and `none`. */
export const networkRights: readonly Right[] = [
  { group: 'networking.k8s.io', resource: 'networkpolicies', verbs: ['create', 'get', 'update', 'delete'] },
];

const versionSchema = z.looseObject({ gitVersion: z.string() });
const reviewSchema = z.looseObject({ status: z.looseObject({ allowed: z.boolean() }) });

export async function check({ name, address, client, avoided, networks }: CheckParts, signal: AbortSignal): Promise<Finding[]> {
  const subject = `runtime ${name}`;
  const { namespace, from } = client.access;
  const findings: Finding[] = [];
  try {
    const doing = 'ask for the version';
    const version = client.formed(versionSchema, await client.ask({ path: '/version', doing, signal }), doing);
    const answers = `Kubernetes ${version.gitVersion} answers (${from})`;
    if (await isMissing(client, signal)) {
      findings.push(problem(subject, `${answers}, but namespace ${namespace} does not exist.`, noNamespace(namespace)));
      return findings;
    }
    findings.push(fine(subject, `${answers}; agents are in namespace ${namespace}.`));
    const missing = await missingRights(client, rights, signal);
    if (missing.length > 0) {
      const hint = `Check that the namespace exists, and give it the Role and its binding, as docs/runtimes/kubernetes.md#rights says.`;
      findings.push(problem(subject, `It may not ${missing.join(', ')} in namespace ${namespace}.`, hint));
    }
    if (from === podAccount && address !== null && parseNamed(address) === null) {
      const hint = 'Write the name of its Service, such as onejob:7443: docs/kubernetes.md#agents-of-ci-services.';
      findings.push(
        warning(
          subject,
          `"address" is ${address}, but a pod has another address each time, and that of a Service is not its own.`,
          hint,
        ),
      );
    }
    findings.push(...networkFindings(subject, networks, await missingRights(client, networkRights, signal)));
  } catch (error) {
    signal.throwIfAborted();
    const { message } = toFailure(error);
    findings.push({ ...problem(subject, message, 'Check whether "kubectl cluster-info" answers.'), mayPass: true });
  }
  return [...findings, ...avoidedFindings(subject, avoided, (node) => `kubectl cordon ${node}`)];
}

/** Whether the namespace is known not to exist. Its list of pods would be empty then. Who may not ask has a right in it, or lacks all. */
async function isMissing(client: KubeClient, signal: AbortSignal): Promise<boolean> {
  const { namespace } = client.access;
  const path = `/api/v1/namespaces/${encodeURIComponent(namespace)}`;
  try {
    await client.bytes({ path, doing: `look for namespace ${namespace}`, signal, nothing: [403] });
    return false;
  } catch (error) {
    if (refusalOf(error)?.status === 404) return true;
    throw error;
  }
}

/** Whether pools may use the networks that policies keep. Without the right it is a limit, not a fault: no pool may want one. */
function networkFindings(subject: string, networks: readonly Proof[], missing: readonly string[]): Finding[] {
  if (missing.length > 0)
    return [fine(subject, `Pools cannot use network: internet or none, because it may not ${missing.join(', ')}.`)];
  if (networks.length === 0)
    return [fine(subject, 'Pools may use network: internet or none, if their first agent shows that the cluster keeps policies.')];
  return networks.map(({ network, failure }) =>
    failure === null
      ? fine(subject, `The cluster keeps network ${network}: pods have tried it.`)
      : problem(subject, `${failure.message} (${failure.code})`, failure.hint),
  );
}

/** In words, such as `create pods/exec`. */
async function missingRights(client: KubeClient, wanted: readonly Right[], signal: AbortSignal): Promise<string[]> {
  const { namespace } = client.access;
  const doing = 'ask what it may do';
  const isAllowed = async (group: string, whole: string, verb: string): Promise<boolean> => {
    const [resource, subresource] = whole.split('/');
    const spec = { resourceAttributes: { namespace, group, resource, verb, subresource } };
    const body = { apiVersion: 'authorization.k8s.io/v1', kind: 'SelfSubjectAccessReview', spec };
    const path = '/apis/authorization.k8s.io/v1/selfsubjectaccessreviews';
    const answer = await client.ask({ method: 'POST', path, body, doing, signal });
    return client.formed(reviewSchema, answer, doing).status.allowed;
  };
  const all = wanted.flatMap(({ group, resource, verbs }) =>
    verbs.map(async (verb) => ((await isAllowed(group, resource, verb)) ? [] : [`${verb} ${resource}`])),
  );
  return (await Promise.all(all)).flat();
}
