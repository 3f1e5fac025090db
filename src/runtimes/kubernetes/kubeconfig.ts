/**
 * Where a cluster's API is, and who calls it: from a kubeconfig (https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/), or
 * from the service account of the pod that this process is in.
 */
import { access, readFile } from 'node:fs/promises';
import { homedir } from 'node:os';
import { delimiter, dirname, resolve } from 'node:path';
import { parse } from 'yaml';
import { z } from 'zod';
import { codeOf, messageOf, OnejobError } from '../../base/errors.ts';
import type { Variables } from '../../base/variables.ts';
import type { Clock } from '../../core/clock.ts';
import { jsonOf } from '../../system/json.ts';
import { run } from '../../system/run.ts';
import type { KubernetesConfig } from './config.ts';

/** The API of a cluster, and the credentials for it. */
/** Where the access of a pod of the cluster was found, for people. */
export const podAccount = 'its service account';

export interface Access {
  readonly server: URL;
  /** Where it was found, for people. */
  readonly from: string;
  readonly namespace: string;
  readonly tls: TlsOptions;
  /** The bearer token that is valid now; null without one. `isRefused`: the last one is not. @throws OnejobError E_CONFIG */
  token(isRefused?: boolean): Promise<string | null>;
}

interface TlsOptions {
  readonly ca?: string | undefined;
  readonly cert?: string | undefined;
  readonly key?: string | undefined;
  readonly servername?: string | undefined;
  readonly rejectUnauthorized?: boolean;
}

const inPod = '/var/run/secrets/kubernetes.io/serviceaccount';
/** ms for which a token that was read from a file counts: the kubelet renews it long before it ends. */
const fileTokenFor = 60_000;
/** ms that a program may take to give credentials. */
const execLimit = 30_000;

const text = z.string().optional();
const named = <S extends z.ZodRawShape>(shape: S) => z.array(z.looseObject({ name: z.string(), ...shape })).nullish();
const execSchema = z.looseObject({
  apiVersion: z.string(),
  command: z.string(),
  args: z.array(z.string()).nullish(),
  env: z.array(z.object({ name: z.string(), value: z.string() })).nullish(),
});
const clusterSchema = z.looseObject({
  server: z.string(),
  'certificate-authority': text,
  'certificate-authority-data': text,
  'insecure-skip-tls-verify': z.boolean().optional(),
  'tls-server-name': text,
  'proxy-url': text,
});
const userSchema = z.looseObject({
  token: text,
  tokenFile: text,
  username: text,
  'client-certificate': text,
  'client-certificate-data': text,
  'client-key': text,
  'client-key-data': text,
  exec: execSchema.optional(),
  'auth-provider': z.unknown().optional(),
});
const contextSchema = z.looseObject({ cluster: z.string(), user: z.string(), namespace: text });
const fileSchema = z.looseObject({
  'current-context': text,
  clusters: named({ cluster: clusterSchema }),
  users: named({ user: userSchema }),
  contexts: named({ context: contextSchema }),
});
const credentialSchema = z.looseObject({
  status: z.looseObject({ token: text, expirationTimestamp: text, clientCertificateData: text, clientKeyData: text }),
});

type Time = Pick<Clock, 'now' | 'wall'>;
type Wanted = Pick<KubernetesConfig, 'kubeconfig' | 'context' | 'namespace'>;
type User = z.infer<typeof userSchema>;

/** @throws OnejobError E_CONFIG, which says what is missing */
export async function accessOf(wanted: Wanted, clock: Time, env: Variables = process.env): Promise<Access> {
  const { KUBERNETES_SERVICE_HOST: host, KUBERNETES_SERVICE_PORT: port = '443', KUBECONFIG: named } = env;
  if (wanted.kubeconfig === null && wanted.context === null && host !== undefined) return ofPod(wanted, host, port, clock);
  // The first that is there, as one file: contexts that are spread over several files are not joined.
  const paths =
    wanted.kubeconfig === null
      ? (named?.split(delimiter).filter((path) => path !== '') ?? [resolve(homedir(), '.kube/config')])
      : [wanted.kubeconfig];
  for (const path of paths) {
    const isMissing = await access(path).then(
      () => false,
      (error: unknown) => codeOf(error) === 'ENOENT',
    );
    if (!isMissing) return ofFile(path, wanted, clock);
  }
  throw wrong(paths.join(' and '), 'does not exist');
}

async function ofPod(wanted: Wanted, host: string, port: string, clock: Time): Promise<Access> {
  const token = remembered(() => tokenIn(`${inPod}/token`, clock), clock);
  return {
    server: new URL(`https://${host.includes(':') ? `[${host}]` : host}:${port}`),
    from: podAccount,
    namespace: wanted.namespace ?? (await contentOf(`${inPod}/namespace`)).trim(),
    tls: { ca: await contentOf(`${inPod}/ca.crt`) },
    token: async (isRefused) => (await token(isRefused)).token,
  };
}

async function ofFile(path: string, wanted: Wanted, clock: Time): Promise<Access> {
  const file = parsed(path, await contentOf(path));
  const found = <T extends { readonly name: string }>(kind: string, all: readonly T[] | null | undefined, name: string): T => {
    const one = all?.find((each) => each.name === name);
    if (one === undefined) throw wrong(path, `has no ${kind} ${JSON.stringify(name)}`);
    return one;
  };
  const context = wanted.context ?? file['current-context'];
  if (context === undefined || context === '') throw wrong(path, 'has no current-context', 'Write "context" into the runtime.');
  const { cluster: clusterName, user: userName, namespace } = found('context', file.contexts, context).context;
  const { cluster } = found('cluster', file.clusters, clusterName);
  const { user } = found('user', file.users, userName);
  for (const key of ['auth-provider', 'username'] as const)
    if (user[key] !== undefined) throw wrong(path, `has "${key}" for user ${userName}, which Kubernetes does not know any more`);
  const server = URL.parse(cluster.server);
  if (server === null || !/^https?:$/.test(server.protocol))
    throw wrong(path, `has the server "${cluster.server}" for cluster ${clusterName}, which is not an http:// or https:// address`);
  if (cluster['proxy-url'] !== undefined)
    throw wrong(path, `has "proxy-url" for cluster ${clusterName}, which onejob does not use`);
  const credential = credentialOf(path, user, cluster.server, clock);
  // Certificates are read once.
  const given = user.exec === undefined ? null : await credential();
  const [ca, cert, key] = await Promise.all([
    dataOf(path, cluster['certificate-authority-data'], cluster['certificate-authority']),
    given?.cert ?? dataOf(path, user['client-certificate-data'], user['client-certificate']),
    given?.key ?? dataOf(path, user['client-key-data'], user['client-key']),
  ]);
  return {
    server,
    from: path,
    namespace: wanted.namespace ?? namespace ?? 'default',
    tls: {
      ca,
      cert,
      key,
      servername: cluster['tls-server-name'],
      ...(cluster['insecure-skip-tls-verify'] === true && { rejectUnauthorized: false }),
    },
    token: async (isRefused) => (await credential(isRefused)).token,
  };
}

function parsed(path: string, content: string): z.infer<typeof fileSchema> {
  let document: unknown;
  try {
    document = parse(content);
  } catch (error) {
    throw wrong(path, `is not YAML: ${messageOf(error).split('\n')[0]}`);
  }
  const result = fileSchema.safeParse(document);
  if (result.success) return result.data;
  const [issue] = result.error.issues;
  throw wrong(path, `is not a kubeconfig: ${issue?.path.join('.')}: ${issue?.message}`);
}

interface Credential {
  readonly token: string | null;
  readonly cert?: string | undefined;
  readonly key?: string | undefined;
  /** The time of the clock until which it counts. */
  readonly until: number;
}

/** What is valid now. `tokenFile` counts more than `token`, because it may be renewed. */
function credentialOf(path: string, { token, tokenFile, exec }: User, server: string, clock: Time): ReturnType<typeof remembered> {
  if (exec !== undefined) return remembered(() => printed(path, exec, server, clock), clock);
  if (tokenFile !== undefined) return remembered(() => tokenIn(resolve(dirname(path), tokenFile), clock), clock);
  return async () => ({ token: token ?? null, until: Number.POSITIVE_INFINITY });
}

/** All that wait get what is read once. */
function remembered(read: () => Promise<Credential>, clock: Time) {
  let last: Credential | null = null;
  let next: Promise<Credential> | null = null;
  return async (isRefused = false): Promise<Credential> => {
    if (last !== null && last.until > clock.now() && !isRefused) return last;
    next ??= read().finally(() => {
      next = null;
    });
    last = await next;
    return last;
  };
}

async function tokenIn(path: string, clock: Time): Promise<Credential> {
  return { token: (await contentOf(path)).trim(), until: clock.now() + fileTokenFor };
}

/** Runs a program of the kubeconfig, as https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins says. */
async function printed(path: string, exec: NonNullable<User['exec']>, server: string, clock: Time): Promise<Credential> {
  const { apiVersion, command, args, env } = exec;
  const info = { apiVersion, kind: 'ExecCredential', spec: { interactive: false, cluster: { server } } };
  const moreEnv = Object.fromEntries((env ?? []).map(({ name, value }) => [name, value]));
  const program = command.includes('/') ? resolve(dirname(path), command) : command;
  const { error, stdout } = await run(program, args ?? [], {
    timeout: execLimit,
    moreEnv: { ...moreEnv, KUBERNETES_EXEC_INFO: JSON.stringify(info) },
  });
  const words = error?.message.split('\n').slice(0, 3).join(' ');
  if (error !== null) throw wrong(path, `names program ${command} for credentials, which failed: ${words}`);
  const answer = credentialSchema.safeParse(jsonOf(`${stdout}`));
  if (!answer.success) throw wrong(path, `names program ${command}, which printed no credentials`);
  const { token, expirationTimestamp = '', clientCertificateData: cert, clientKeyData: key } = answer.data.status;
  const expires = Date.parse(expirationTimestamp);
  const left = Number.isNaN(expires) ? Number.POSITIVE_INFINITY : Math.max(0, expires - clock.wall() - fileTokenFor);
  return { token: token ?? null, cert, key, until: clock.now() + left };
}

/** What is in the file itself counts more than another file; paths are relative to the file. */
async function dataOf(path: string, data: string | undefined, file: string | undefined): Promise<string | undefined> {
  if (data !== undefined && data !== '') return Buffer.from(data, 'base64').toString('utf8');
  return file === undefined ? undefined : contentOf(resolve(dirname(path), file));
}

/** @throws OnejobError E_CONFIG */
function contentOf(path: string): Promise<string> {
  return readFile(path, 'utf8').catch((error: unknown) => {
    throw wrong(path, `cannot be read: ${codeOf(error)}`);
  });
}

function wrong(path: string, what: string, hint = 'Check it with "kubectl --kubeconfig FILE get pods".'): OnejobError {
  return new OnejobError('E_CONFIG', `Cannot use the kubeconfig: ${path} ${what}.`, { hint });
}
