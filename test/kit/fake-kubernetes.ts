/**
 * The API of a Kubernetes, in memory, for what a real one does only on bad days: it refuses, is silent, cuts answers, forgets.
 * Without such orders it does what a real one does for pods, their logs and streams, Leases and network policies. Pods change only when a test says so.
 */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Duplex } from 'node:stream';
import { type WebSocket, WebSocketServer } from 'ws';
import type { Clock } from '../../src/core/clock.ts';
import type { Access } from '../../src/runtimes/kubernetes/kubeconfig.ts';
import { handClock } from './core.ts';

/** biome-ignore lint/suspicious/noExplicitAny: read like the JSON that it becomes */
type Json = any;
export type What =
  | 'list'
  | 'watch'
  | 'create'
  | 'get'
  | 'delete'
  | 'log'
  | 'follow'
  | 'attach'
  | 'exec'
  | 'lease'
  | 'policy'
  | 'review'
  | 'namespace'
  | 'version';

export interface Call {
  readonly what: What;
  readonly method: string;
  readonly url: URL;
  /** Name of the pod; empty: it names none. */
  readonly pod: string;
  readonly body: Json;
  /** Of plain calls. */
  readonly reply: ServerResponse;
  /** Ends the connection below it. */
  cut(): void;
  /** Of attach and exec: opens it. */
  open(): Promise<WebSocket>;
}

/** `silent`: no answer. `cut`: the connection ends without one. */
type Way =
  | 'silent'
  | 'cut'
  | { readonly status: number; readonly message?: string; readonly reason?: string; readonly body?: string }
  | ((call: Call) => void);

interface Line {
  readonly stamp: string;
  readonly text: string;
}

export const token = 'token-that-nobody-may-see';

/** Messages of a stream: the number of a channel, and what it says. */
export const channel = (number: number, text: string | object): Buffer =>
  Buffer.concat([Buffer.of(number), Buffer.from(typeof text === 'string' ? text : JSON.stringify(text))]);
export const success = channel(3, { status: 'Success' });

export type FakeKubernetes = Awaited<ReturnType<typeof fakeKubernetes>>;

/** What a test may change of it at any time. */
interface State {
  version: number;
  oldest: number;
  isAway: boolean;
  /** Connections that were ended because it is away. */
  refused: number;
  /** Pods of one answer. */
  pageSize: number;
  /** Whether a pod that is deleted stays until `remove`. */
  staysDeleted: boolean;
}

/** Disposing of it ends all connections. */
export async function fakeKubernetes() {
  const it: State = { version: 100, oldest: 0, isAway: false, refused: 0, pageSize: 500, staysDeleted: false };
  const calls: Call[] = [];
  const orders = new Map<What, Way[]>();
  const standing = new Map<What, Way>();
  const waiting = new Set<() => void>();
  const changed = (): void => {
    for (const look of [...waiting]) look();
  };
  const { list, watch, ...store } = storeOf(it);
  const { log, ...logs } = logsOf(store.pods);
  const inputs = new Map<string, Buffer>();
  const policies = new Map<string, Json>();
  const usual: Usual = {
    list,
    watch,
    log,
    follow: log,
    ...podAnswers(it, store),
    ...otherAnswers(policies),
    ...streamAnswers(inputs, changed),
  };
  const take = (call: Call): void => {
    calls.push(call);
    const way = orders.get(call.what)?.shift() ?? standing.get(call.what);
    if (way === 'cut') call.cut();
    else if (typeof way === 'function') way(call);
    else if (typeof way === 'object') refuse(call.reply, way.status, way.reason ?? '', way.message ?? '', way.body);
    else if (way !== 'silent') void usual[call.what](call);
    changed();
  };
  const server = await serverOf(it, take, changed);
  return {
    ...store,
    ...logs,
    ...server,
    calls,
    it,
    policies,
    /** The next calls of this kind are answered in these ways, one each. */
    answer: (what: What, ...ways: Way[]) => void orders.set(what, [...(orders.get(what) ?? []), ...ways]),
    /** All further ones are; null: as usual again. */
    always: (what: What, way: Way | null) => void (way === null ? standing.delete(what) : standing.set(what, way)),
    count: (what: What) => calls.filter((call) => call.what === what).length,
    /** Resolves once `isTrue` is, which is looked at when a call or input comes. */
    until: (isTrue: () => boolean) => until(waiting, isTrue),
    /** Resolves at the nth call of this kind, counted from 1. */
    async called(what: What, n = 1): Promise<Call> {
      const all = () => calls.filter((call) => call.what === what);
      await until(waiting, () => all().length >= n);
      return all()[n - 1] as Call;
    },
    /** What was written to a container. */
    inputOf: (name: string) => `${inputs.get(name) ?? ''}`,
  };
}

type Usual = Readonly<Record<What, (call: Call) => unknown>>;

/** Pods, and who watches them. */
function storeOf(it: State) {
  const pods = new Map<string, Json>();
  const watches = new Set<ServerResponse>();
  let history: { readonly version: number; readonly line: string }[] = [];
  const tell = (type: string, object: Json): void => {
    it.version += 1;
    object.metadata.resourceVersion = `${it.version}`;
    const line = `${JSON.stringify({ type, object })}\n`;
    history.push({ version: it.version, line });
    for (const watch of watches) watch.write(line);
  };
  const put = (pod: Json): void => {
    const type = pods.has(pod.metadata.name) ? 'MODIFIED' : 'ADDED';
    pods.set(pod.metadata.name, pod);
    tell(type, pod);
  };
  const remove = (name: string): void => {
    const pod = pods.get(name);
    pods.delete(name);
    if (pod !== undefined) tell('DELETED', pod);
  };
  const list = ({ url, reply }: Call): void => {
    const from = Number(url.searchParams.get('continue') ?? 0);
    const labels = (url.searchParams.get('labelSelector') ?? '').split(',').map((label) => label.split('='));
    const isWanted = ({ metadata }: Json) =>
      labels.every(([name = '', value = metadata.labels?.[name]]) => value !== undefined && metadata.labels?.[name] === value);
    const all = [...pods.values()].filter(isWanted);
    const more = from + it.pageSize < all.length ? `${from + it.pageSize}` : '';
    const metadata = { resourceVersion: `${it.version}`, continue: more };
    reply.end(JSON.stringify({ kind: 'PodList', metadata, items: all.slice(from, from + it.pageSize) }));
  };
  const watch = ({ url, reply }: Call): void => {
    const from = Number(url.searchParams.get('resourceVersion'));
    reply.writeHead(200).flushHeaders();
    if (from < it.oldest) {
      const object = { code: 410, reason: 'Expired', message: 'too old resource version' };
      reply.end(`${JSON.stringify({ type: 'ERROR', object })}\n`);
      return;
    }
    for (const { version, line } of history) if (version > from) reply.write(line);
    watches.add(reply);
    reply.on('close', () => watches.delete(reply));
  };
  return {
    pods,
    tell,
    put,
    remove,
    list,
    watch,
    /** Ends the watches that are open, without a word; with `last`, in the middle of what they say. */
    endWatches(last?: string) {
      for (const watch of watches) {
        if (last === undefined) watch.end();
        else watch.write(last, () => watch.destroy());
      }
      watches.clear();
    },
    /** A watch from before now is too old. */
    compact() {
      history = [];
      it.oldest = it.version + 1;
      it.version += 1;
    },
  };
}

/** What containers have written, and who reads it. */
function logsOf(pods: ReadonlyMap<string, Json>) {
  const logs = new Map<string, Line[]>();
  const follows = new Map<string, Set<ServerResponse>>();
  const written = ({ stamp, text }: Line, hasStamps: boolean): string => `${hasStamps ? `${stamp} ` : ''}${text}`;

  const log = ({ url, pod, reply }: Call): void => {
    const { searchParams } = url;
    const state = pods.get(pod)?.status?.containerStatuses?.[0]?.state;
    if (!pods.has(pod)) return void refuse(reply, 404, 'NotFound', `pods "${pod}" not found`);
    if (state?.running === undefined && state?.terminated === undefined)
      return void refuse(reply, 400, 'BadRequest', `container "job" in pod "${pod}" is waiting to start: ContainerCreating`);
    const since = Date.parse(searchParams.get('sinceTime') ?? '1970-01-01T00:00:00Z');
    const after = (logs.get(pod) ?? []).filter(({ stamp }) => Date.parse(stamp) >= since);
    const tail = after.slice(-Number(searchParams.get('tailLines') ?? 1e9));
    reply.writeHead(200).flushHeaders();
    for (const line of tail) reply.write(written(line, searchParams.has('timestamps')));
    if (searchParams.get('follow') !== 'true' || state.terminated !== undefined) {
      reply.end();
      return;
    }
    const readers = follows.get(pod) ?? new Set();
    follows.set(pod, readers.add(reply));
    reply.on('close', () => readers.delete(reply));
  };
  return {
    log,
    /** A container writes a line. */
    write(name: string, stamp: string, text: string) {
      const line = { stamp, text };
      logs.set(name, [...(logs.get(name) ?? []), line]);
      for (const reader of follows.get(name) ?? []) reader.write(written(line, true));
    },
    /** Its node throws away all that it has kept so far. */
    rotate: (name: string) => void logs.delete(name),
    /** Ends the answers of a log that continue, without a word, though the container runs. */
    endLogs(name: string) {
      for (const reader of follows.get(name) ?? []) reader.end();
      follows.delete(name);
    },
    /** Cuts them in the middle of what they say. */
    cutLogs(name: string, last: string) {
      for (const reader of follows.get(name) ?? []) reader.write(last, () => reader.destroy());
      follows.delete(name);
    },
  };
}

function podAnswers(it: State, { pods, put, remove, tell }: Omit<ReturnType<typeof storeOf>, 'list' | 'watch'>) {
  return {
    get({ pod, reply }) {
      if (!pods.has(pod)) return refuse(reply, 404, 'NotFound', `pods "${pod}" not found`);
      reply.end(JSON.stringify(pods.get(pod)));
    },
    create({ body, reply }) {
      const { name } = body.metadata;
      if (pods.has(name)) return refuse(reply, 409, 'AlreadyExists', `pods "${name}" already exists`);
      body.metadata.uid = `uid-${it.version + 1}`;
      body.status = { phase: 'Pending' };
      put(body);
      reply.writeHead(201).end(JSON.stringify(body));
    },
    delete({ pod, body, reply }) {
      const found = pods.get(pod);
      if (found === undefined) return refuse(reply, 404, 'NotFound', `pods "${pod}" not found`);
      if ((body.preconditions?.uid ?? found.metadata.uid) !== found.metadata.uid)
        return refuse(reply, 409, 'Conflict', 'the UID in the precondition differs');
      found.metadata.deletionTimestamp = '2030-01-01T00:00:00Z';
      if (it.staysDeleted) tell('MODIFIED', found);
      else remove(pod);
      reply.end('{}');
    },
  } satisfies Partial<Usual>;
}

function otherAnswers(policies: Map<string, Json>) {
  const leases = new Map<string, Json>();
  return {
    version: ({ reply }) => reply.end('{"gitVersion":"v1.37.2"}'),
    review: ({ reply }) => reply.end('{"status":{"allowed":true}}'),
    namespace: ({ reply }) => reply.end('{"kind":"Namespace"}'),
    lease({ method, url, body, reply }) {
      const name = body?.metadata?.name ?? url.pathname.split('/').at(-1);
      if (method === 'POST') leases.set(name, { ...body, metadata: { ...body.metadata, uid: 'lease-1' } });
      const found = leases.get(name);
      if (method === 'DELETE') leases.delete(name);
      if (found === undefined) return refuse(reply, 404, 'NotFound', `leases "${name}" not found`);
      reply.end(JSON.stringify(found));
    },
    policy({ method, url, body, reply }) {
      const name = body?.metadata?.name ?? url.pathname.split('/').at(-1);
      const { uid = `policy-${policies.size + 1}`, generation = 0 } = policies.get(name)?.metadata ?? {};
      if (body !== null) policies.set(name, { ...body, metadata: { ...body.metadata, uid, generation: generation + 1 } });
      const found = policies.get(name);
      if (method === 'DELETE') policies.delete(name);
      if (found === undefined) return refuse(reply, 404, 'NotFound', `networkpolicies "${name}" not found`);
      reply.end(JSON.stringify(found));
    },
  } satisfies Partial<Usual>;
}

function streamAnswers(inputs: Map<string, Buffer>, changed: () => void) {
  return {
    async attach({ pod, open }) {
      const socket = await open();
      socket.on('message', (data: Buffer) => {
        if (data[0] === 0) inputs.set(pod, Buffer.concat([inputs.get(pod) ?? Buffer.alloc(0), data.subarray(1)]));
        changed();
      });
    },
    async exec({ open }) {
      const socket = await open();
      socket.send(success, () => socket.close(1000));
    },
  } satisfies Partial<Usual>;
}

/** Listens at once. */
async function serverOf(it: State, take: (call: Call) => void, changed: () => void) {
  const connections = new Set<Duplex>();
  const sockets = new WebSocketServer({ noServer: true, handleProtocols: () => 'v5.channel.k8s.io' });
  const server = createServer((request, reply) => {
    void bodyOf(request).then(
      (body) => {
        const cut = (): void => void request.socket.destroy();
        const open = (): Promise<WebSocket> => Promise.reject(new Error('it is no stream'));
        take({ ...aboutOf(request), body, reply, cut, open });
      },
      () => {},
    );
  });
  server.on('upgrade', (request, socket, head) => {
    const open = (): Promise<WebSocket> => new Promise((resolve) => sockets.handleUpgrade(request, socket, head, resolve));
    const reply = {
      writeHead: (status: number) => void socket.write(`HTTP/1.1 ${status} No\r\nconnection: close\r\n\r\n`),
      end: (said: string) => void socket.end(said),
    };
    take({ ...aboutOf(request), body: null, reply: reply as unknown as ServerResponse, cut: () => void socket.destroy(), open });
  });
  server.on('connection', (socket) => {
    if (it.isAway) {
      it.refused += 1;
      socket.destroy();
      changed();
      return;
    }
    connections.add(socket);
    socket.on('close', () => connections.delete(socket));
    socket.on('error', () => {});
  });
  await new Promise<void>((done) => server.listen(0, '127.0.0.1', done));
  const url = new URL(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
  const access: Access = { server: url, from: 'test', namespace: 'ci', tls: {}, token: async () => token };

  return {
    access,
    /** Goes away, with all connections, or comes back. */
    away(isAway: boolean) {
      it.isAway = isAway;
      if (isAway) for (const socket of connections) socket.destroy();
    },
    async [Symbol.asyncDispose]() {
      for (const socket of [...connections]) socket.destroy();
      await new Promise((done) => server.close(done));
    },
  };
}

function refuse(reply: ServerResponse, status: number, reason: string, message: string, body?: string): void {
  reply.writeHead(status);
  reply.end(body ?? JSON.stringify({ kind: 'Status', status: 'Failure', code: status, reason, message }));
}

async function bodyOf(request: IncomingMessage): Promise<Json> {
  let content = '';
  for await (const bytes of request) content += String(bytes);
  return content === '' ? null : JSON.parse(content);
}

function aboutOf({ url: path = '', method = 'GET' }: IncomingMessage): Pick<Call, 'what' | 'method' | 'url' | 'pod'> {
  const url = new URL(path, 'http://fake');
  const [, pod = '', part] = /\/pods(?:\/([^/]+)(?:\/([^/]+))?)?$/.exec(url.pathname) ?? [];
  const what = (): What => {
    if (url.pathname === '/version') return 'version';
    if (url.pathname.endsWith('/selfsubjectaccessreviews')) return 'review';
    if (/\/namespaces\/[^/]+$/.test(url.pathname)) return 'namespace';
    if (url.pathname.includes('/leases')) return 'lease';
    if (url.pathname.includes('/networkpolicies')) return 'policy';
    if (part === 'log') return url.searchParams.get('follow') === 'true' ? 'follow' : 'log';
    if (part !== undefined) return part as What;
    if (pod === '' && method === 'GET') return url.searchParams.get('watch') === 'true' ? 'watch' : 'list';
    return { GET: 'get', POST: 'create', DELETE: 'delete' }[method] as What;
  };
  return { what: what(), method, url, pod };
}

function until(waiting: Set<() => void>, isTrue: () => boolean): Promise<void> {
  return new Promise((resolve) => {
    const look = (): void => {
      if (!isTrue()) return;
      waiting.delete(look);
      resolve();
    };
    waiting.add(look);
    look();
  });
}

/** The pod of an agent, as a node tells of it. */
export function podOf(
  agent: string,
  state: 'running' | 'pending' | Json = 'running',
  more: { owner?: string; uid?: string; status?: Json } = {},
): Json {
  const { owner = 'me', uid = `uid-of-${agent}`, status = {} } = more;
  const states: Readonly<Record<string, Json>> = {
    running: { running: {} },
    pending: { waiting: { reason: 'ContainerCreating' } },
  };
  return {
    metadata: {
      name: `oj-${agent}`,
      uid,
      labels: { 'onejob/owner': owner, 'onejob/agent': agent },
      annotations: { 'onejob/pool': 'gpu', 'onejob/slot': 'gpu/1', 'onejob/fingerprint': 'f1' },
    },
    spec: { nodeName: 'k1' },
    status: {
      phase: state === 'running' ? 'Running' : 'Pending',
      containerStatuses: [{ name: 'job', state: typeof state === 'string' ? states[state] : state }],
      ...status,
    },
  };
}

/** Time that is moved by hand, and tells when somebody begins to wait. */
export function toldClock(): Clock & {
  advance(ms: number): void;
  waits(ms: number): Promise<void>;
  pass(ms: number): Promise<void>;
} {
  const clock = handClock();
  const pending: number[] = [];
  const waiting = new Set<() => void>();
  const waits = (ms: number): Promise<void> => until(waiting, () => pending.includes(ms));
  const drop = (ms: number): void => {
    const at = pending.indexOf(ms);
    if (at !== -1) pending.splice(at, 1);
  };
  return {
    now: clock.now,
    wall: clock.wall,
    advance: clock.advance,
    /** Resolves once something waits for so long. */
    waits,
    /** Lets that pass. */
    async pass(ms) {
      await waits(ms);
      clock.advance(ms);
    },
    after(ms, fn) {
      let isPending = true;
      const end = (): void => {
        if (isPending) drop(ms);
        isPending = false;
      };
      pending.push(ms);
      for (const look of [...waiting]) look();
      const callOff = clock.after(ms, () => {
        end();
        fn();
      });
      return () => {
        end();
        callOff();
      };
    },
  };
}
