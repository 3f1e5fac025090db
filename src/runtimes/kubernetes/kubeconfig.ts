/**
 * Where a cluster's API is, and who calls it: from a kubeconfig (https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/), or
 * from the service account of the pod that this process is in.
 */
import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { homedir } from 'node:os';
import { delimiter, dirname, resolve } from 'node:path';
import { promisify } from 'node:util';
import { parse } from 'yaml';
import { z } from 'zod';
import { codeOf, messageOf, OnejobError } from '../../base/errors.ts';
import type { Clock } from '../../core/clock.ts';
import { jsonOf } from '../../system/json.ts';
import type { KubernetesConfig } from './config.ts';

/** The API of a cluster, and the credentials for it. */
export interface Access {
  readonly server: URL;
  /** Where it was found, for people. */
  readonly from: string;
  readonly namespace: string;
  readonly tls: TlsOptions;
  /** The bearer token that is valid now; null without one. @throws OnejobError E_CONFIG */
  token(): Promise<string | null>;
}

export interface TlsOptions {
  readonly ca?: string;
  readonly cert?: string;
  readonly key?: string;
  readonly servername?: string;
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
  status: z.looseObject({
    token: text,
    expirationTimestamp: text,
    clientCertificateData: text,
    clientKeyData: text,
  }),
});

type Env = Readonly<Record<string, string | undefined>>;
type Wanted = Pick<KubernetesConfig, 'kubeconfig' | 'context' | 'namespace'>;

/** @throws OnejobError E_CONFIG, which says what is missing */
export async function accessOf(wanted: Wanted, clock: Pick<Clock, 'now' | 'wall'>, env: Env = process.env): Promise<Access> {
  const { KUBERNETES_SERVICE_HOST: host, KUBERNETES_SERVICE_PORT: port = '443', KUBECONFIG: named } = env;
  if (wanted.kubeconfig === null && wanted.context === null && host !== undefined) return ofPod(wanted, host, port, clock);
  // The first that is there, as one file: contexts that are spread over several files are not joined.
  const paths =
    wanted.kubeconfig === null
      ? (named?.split(delimiter).filter((path) => path !== '') ?? [resolve(homedir(), '.kube/config')])
      : [wanted.kubeconfig];
  for (const path of paths) {
    const content = await readFile(path, 'utf8').catch((error: unknown) => {
      if (codeOf(error) === 'ENOENT') return null;
      throw wrong(path, `cannot be read: ${codeOf(error)}`);
    });
    if (content !== null) return ofFile(path, content, wanted, clock);
  }
  throw wrong(paths.join(' and '), 'does not exist');
}

async function ofPod(wanted: Wanted, host: string, port: string, clock: Pick<Clock, 'now'>): Promise<Access> {
  const read = (name: string) =>
    readFile(`${inPod}/${name}`, 'utf8').catch((error: unknown) => {
      throw wrong(`${inPod}/${name}`, `cannot be read: ${codeOf(error)}`);
    });
  return {
    server: new URL(`https://${host.includes(':') ? `[${host}]` : host}:${port}`),
    from: 'its service account',
    namespace: wanted.namespace ?? (await read('namespace')).trim(),
    tls: { ca: await read('ca.crt') },
    token: remembered(async () => ({ token: (await read('token')).trim(), until: clock.now() + fileTokenFor }), clock),
  };
}

async function ofFile(path: string, content: string, wanted: Wanted, clock: Pick<Clock, 'now' | 'wall'>): Promise<Access> {
  const file = parsed(path, content);
  const context = wanted.context ?? file['current-context'];
  if (context === undefined || context === '') throw wrong(path, 'has no current-context', 'Write "context" into the runtime.');
  const { cluster: clusterName, user: userName, namespace } = found(path, file.contexts, 'context', context).context;
  const { cluster } = found(path, file.clusters, 'cluster', clusterName);
  const { user } = found(path, file.users, 'user', userName);
  for (const key of ['auth-provider', 'username'] as const)
    if (user[key] !== undefined) throw wrong(path, `has "${key}" for user ${userName}, which Kubernetes does not know any more`);
  if (cluster['proxy-url'] !== undefined)
    throw wrong(path, `has "proxy-url" for cluster ${clusterName}, which onejob does not use`);
  const given = user.exec === undefined ? null : await credentialOf(path, user.exec, cluster.server);
  const [ca, cert, key] = await Promise.all([
    dataOf(path, cluster['certificate-authority-data'], cluster['certificate-authority']),
    given?.cert ?? dataOf(path, user['client-certificate-data'], user['client-certificate']),
    given?.key ?? dataOf(path, user['client-key-data'], user['client-key']),
  ]);
  const servername = cluster['tls-server-name'];
  return {
    server: new URL(cluster.server),
    from: path,
    namespace: wanted.namespace ?? namespace ?? 'default',
    tls: {
      ...(ca !== null && { ca }),
      ...(cert !== null && { cert }),
      ...(key !== null && { key }),
      ...(servername !== undefined && { servername }),
      ...(cluster['insecure-skip-tls-verify'] === true && { rejectUnauthorized: false }),
    },
    token: tokenOf(path, user, cluster.server, clock),
  };
}

function found<T extends { readonly name: string }>(
  path: string,
  list: readonly T[] | null | undefined,
  kind: string,
  name: string,
): T {
  const one = list?.find((each) => each.name === name);
  if (one === undefined) throw wrong(path, `has no ${kind} ${JSON.stringify(name)}`);
  return one;
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

function tokenOf(
  path: string,
  user: z.infer<typeof userSchema>,
  server: string,
  clock: Pick<Clock, 'now' | 'wall'>,
): Access['token'] {
  const { token, tokenFile, exec } = user;
  if (exec !== undefined)
    return remembered(async () => {
      const { token: fresh, expires } = await credentialOf(path, exec, server);
      const left = expires === null ? Number.POSITIVE_INFINITY : Math.max(0, expires - clock.wall() - fileTokenFor);
      return { token: fresh, until: clock.now() + left };
    }, clock);
  // `tokenFile` counts more, because it may be renewed.
  if (tokenFile !== undefined)
    return remembered(async () => {
      const at = resolve(dirname(path), tokenFile);
      const content = await readFile(at, 'utf8').catch((error: unknown) => {
        throw wrong(at, `cannot be read: ${codeOf(error)}`);
      });
      return { token: content.trim(), until: clock.now() + fileTokenFor };
    }, clock);
  return async () => token ?? null;
}

function remembered(
  read: () => Promise<{ readonly token: string | null; readonly until: number }>,
  clock: Pick<Clock, 'now'>,
): Access['token'] {
  let last: { readonly token: string | null; readonly until: number } | null = null;
  return async () => {
    if (last === null || last.until <= clock.now()) last = await read();
    return last.token;
  };
}

interface Credential {
  readonly token: string | null;
  readonly cert: string | null;
  readonly key: string | null;
  /** ms since the epoch; null: it does not say. */
  readonly expires: number | null;
}

/** Runs a program of the kubeconfig, as https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins says. */
async function credentialOf(
  path: string,
  { apiVersion, command, args, env }: z.infer<typeof execSchema>,
  server: string,
): Promise<Credential> {
  const info = { apiVersion, kind: 'ExecCredential', spec: { interactive: false, cluster: { server } } };
  const more = Object.fromEntries((env ?? []).map(({ name, value }) => [name, value]));
  const program = command.includes('/') ? resolve(dirname(path), command) : command;
  const options = { timeout: execLimit, env: { ...process.env, ...more, KUBERNETES_EXEC_INFO: JSON.stringify(info) } };
  const { stdout } = await promisify(execFile)(program, args ?? [], options).catch((error: unknown) => {
    throw wrong(
      path,
      `names program ${command} for credentials, which failed: ${messageOf(error).split('\n').slice(0, 3).join(' ')}`,
    );
  });
  const answer = credentialSchema.safeParse(jsonOf(stdout));
  if (!answer.success) throw wrong(path, `names program ${command}, which printed no credentials`);
  const { token, expirationTimestamp, clientCertificateData, clientKeyData } = answer.data.status;
  const expires = expirationTimestamp === undefined ? Number.NaN : Date.parse(expirationTimestamp);
  return {
    token: token ?? null,
    cert: clientCertificateData ?? null,
    key: clientKeyData ?? null,
    expires: Number.isNaN(expires) ? null : expires,
  };
}

/** What is in the file itself counts more than another file; paths are relative to the file. */
async function dataOf(path: string, data: string | undefined, file: string | undefined): Promise<string | null> {
  if (data !== undefined && data !== '') return Buffer.from(data, 'base64').toString('utf8');
  if (file === undefined) return null;
  const at = resolve(dirname(path), file);
  return readFile(at, 'utf8').catch((error: unknown) => {
    throw wrong(at, `cannot be read: ${codeOf(error)}`);
  });
}

function wrong(path: string, what: string, hint = 'Check it with "kubectl --kubeconfig FILE get pods".'): OnejobError {
  return new OnejobError('E_CONFIG', `Cannot use the kubeconfig: ${path} ${what}.`, { hint });
}
