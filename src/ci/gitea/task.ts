/**
 * A task as Gitea gives it to a runner (`actions-proto-go` 0.4, runner/v1 `Task`; Gitea 1.26, `services/actions/context.go`): what
 * it says of where its job comes from, and what of it the runner in the sandbox gets. All of it is foreign, and much of it secret.
 */
import { isMap, isSeq, parseDocument } from 'yaml';
import { attempt } from '../../base/errors.ts';
import type { JobSecrets } from '../../secrets/job-secrets.ts';
import { masked } from '../kit/masked.ts';
import type { TrustFacts } from '../kit/trust.ts';
import { entriesOf, type Field, fieldOf, fieldsOf, longField, protoNumber, structOf } from './proto.ts';

export interface GivenTask {
  readonly id: number;
  readonly context: Readonly<Record<string, unknown>>;
  /** Variables of repository, owner and instance. */
  readonly vars: Readonly<Record<string, string>>;
}

/** Fields of `Task`. */
const [idNo, payloadNo, contextNo, secretsNo, varsNo] = [1, 2, 3, 4, 7];
/** Bytes of a workflow above which it stays as it is: it is foreign, and reading it takes the manager's time. */
const longestPayload = 1 << 20;
/** Of the job alone; Gitea gives them to every job. */
const ownSecrets: ReadonlySet<string> = new Set(['GITHUB_TOKEN', 'GITEA_TOKEN']);

/** `answer`: of `FetchTask`. null: it has no task. @throws RangeError when it is not whole */
export function taskIn(answer: Buffer): GivenTask | null {
  const task = fieldOf(fieldsOf(answer), 1);
  if (task === null) return null;
  const fields = fieldsOf(task.value);
  const vars = entriesOf(fields, varsNo).map(([name, value]) => [name, value.toString()] as const);
  const context = structOf(fieldOf(fields, contextNo)?.value ?? Buffer.alloc(0));
  return { id: protoNumber(fieldOf(fields, idNo)), context, vars: Object.fromEntries(vars) };
}

/** What its steps show to a cache server (runner 1.0.8, `internal/app/run/runner.go`); null: an older server gives none. */
export function cacheTokenOf({ context }: Pick<GivenTask, 'context'>): string | null {
  const token = context.gitea_runtime_token;
  return typeof token === 'string' && token !== '' ? token : null;
}

export interface HandIn {
  /** Of the server. */
  readonly url: string;
  readonly trusted: boolean;
  /** Of this host, for a trusted job. */
  readonly secrets: JobSecrets['opened'];
}

/**
 * The answer for the runner in the sandbox: the same bytes, but an untrusted job has only its own token, and the steps have the
 * server's real address. The runner takes its own, the filter's, for the server's (1.0.8, `act/runner/run_context.go`), but the
 * environment of a step has precedence.
 */
export function handedIn(answer: Buffer, { url, trusted, secrets }: HandIn): Buffer {
  const rewritten = (field: Field): Uint8Array => {
    if (field.no === payloadNo) {
      const payload = field.value.length > longestPayload ? null : attempt(() => withAddress(field.value.toString(), url));
      return payload === null ? field.raw : longField(payloadNo, Buffer.from(payload));
    }
    if (field.no !== secretsNo || trusted) return field.raw;
    const [[name] = ['']] = entriesOf([field], secretsNo);
    return ownSecrets.has(name) ? field.raw : Buffer.alloc(0);
  };
  const added = secrets.map(({ name, value }) =>
    longField(secretsNo, Buffer.concat([longField(1, Buffer.from(name)), longField(2, Buffer.from(value))])),
  );
  const task = (field: Field) => longField(1, Buffer.concat([...fieldsOf(field.value).map(rewritten), ...added]));
  return Buffer.concat(fieldsOf(answer).map((field) => (field.no === 1 ? task(field) : field.raw)));
}

/** `payload`: the workflow of one job. One that has no steps stays as it is. @throws Error when it is too deep to be read */
function withAddress(payload: string, url: string): string {
  const env = {
    GITHUB_SERVER_URL: url,
    GITHUB_API_URL: `${url}/api/v1`,
    ACTIONS_RUNTIME_URL: `${url}/api/actions_pipeline/`,
    ACTIONS_RESULTS_URL: url,
  };
  // In this schema every scalar is a text, and is written as it was.
  const document = parseDocument(payload, { schema: 'failsafe', keepSourceTokens: false });
  const jobs = document.get('jobs');
  if (document.errors.length > 0 || !isMap(jobs)) return payload;
  for (const { value: job } of jobs.items) {
    const steps = isMap(job) ? job.get('steps') : null;
    for (const step of isSeq(steps) ? steps.items : []) {
      if (!isMap(step)) continue;
      const own = step.get('env');
      if (own === undefined) step.set('env', document.createNode(env));
      if (!isMap(own)) continue;
      for (const [name, value] of Object.entries(env)) if (!own.has(name)) own.set(name, value);
    }
  }
  return document.toString({ lineWidth: 0 });
}

export interface TaskFacts extends TrustFacts {
  /** In the server's word. */
  readonly reason: string | null;
  readonly id: string;
  readonly definition: string | null;
  readonly build: string | null;
  readonly link: string | null;
  readonly title: string;
}

/** Events that somebody or something starts without a change, in the words of `trust.sources`; all others follow from one. */
const madeBy: Readonly<Record<string, string>> = {
  // Gitea does not tell the website from the API.
  workflow_dispatch: 'api',
  schedule: 'schedule',
  workflow_run: 'trigger_job',
  workflow_call: 'trigger_job',
};

export function taskFacts({ id, context }: Pick<GivenTask, 'id' | 'context'>): TaskFacts {
  const of = (name: string, most = 255): string | null => whole(context[name], most);
  const [, organisation = null, pipeline = null] = /^([^/]+)\/([^/]+)$/.exec(of('repository') ?? '') ?? [];
  const ref = of('ref');
  const [, kind, name = null] = /^refs\/(heads|tags)\/(.+)$/.exec(ref ?? '') ?? [];
  const event = of('event_name', 64);
  const pull = objectOf(objectOf(context.event).pull_request);
  const head = objectOf(pull.head);
  const isPull = Object.keys(pull).length > 0 || event === null || event.startsWith('pull_request');
  const number = typeof pull.number === 'number' ? String(pull.number) : null;
  const [repository, run, workflow] = [of('repositoryUrl', 2048), of('run_number', 20), of('workflow')];
  const job = masked(whole(context.job, 200) ?? 'a job without a name');
  const link = `${repository}/actions/runs/${of('run_id', 20)}`;
  return {
    organisation,
    pipeline,
    commit: of('sha'),
    refspec: null,
    hidden: ref === null ? 'its ref' : null,
    repository,
    // The ref of a pull request names no branch (`refs/pull/12/head`).
    branch: isPull ? whole(head.ref, 255) : kind === 'tags' ? null : kind === 'heads' ? name : ref,
    tag: kind === 'tags' && !isPull ? name : null,
    pullRequest: isPull ? { number, repository: whole(objectOf(head.repo).html_url, 2048) } : null,
    source: event === null ? null : (madeBy[event] ?? 'webhook'),
    triggeredBy: event !== null && madeBy[event] === 'trigger_job' ? { pipeline: null } : null,
    // The server itself finds the commit of a ref.
    isResolved: true,
    reason: event,
    id: String(id),
    definition: workflow,
    build: run,
    link: /^https?:\/\/[^\s"'<>#]+$/.test(link) ? link : null,
    title: [workflow, run === null ? null : `#${run}`, job].filter((part) => part !== null).join(' '),
  };
}

const objectOf = (found: unknown): Readonly<Record<string, unknown>> =>
  typeof found === 'object' && found !== null ? (found as Readonly<Record<string, unknown>>) : {};

/** null for anything but a text, and for one that is empty or too long, or has control characters. */
function whole(text: unknown, most: number): string | null {
  if (typeof text !== 'string' || text === '' || text.length > most) return null;
  return /[\p{Cc}\p{Cf}\u2028\u2029]/u.test(text) ? null : text;
}
