/**
 * What Azure DevOps says, as far as onejob relies on it. A list with an entry without id or name is refused as a whole, because a
 * missing agent would look as if it were gone. Everything else may be missing, and is then null.
 */
import { z } from 'zod';

/** Null for anything that does not match. */
function orNull<T extends z.ZodType>(schema: T) {
  return schema
    .nullish()
    .catch(null)
    .transform((found): z.output<T> | null => found ?? null);
}

const id = z.number().int();
const words = orNull(z.string());

/** ms since the epoch. .NET writes the year 1 for "never", and up to seven digits of a second. */
const time = words.transform((text) => {
  if (text === null) return null;
  const at = Date.parse(/(Z|[+-]\d\d:?\d\d)$/i.test(text) ? text : `${text}Z`);
  return Number.isNaN(at) || at < 0 ? null : at;
});

/** A map of texts; what is not text is left out. */
const texts = orNull(z.record(z.string(), z.unknown())).transform((map) => {
  if (map === null) return null;
  return Object.fromEntries(Object.entries(map).flatMap(([key, value]) => (typeof value === 'string' ? [[key, value]] : [])));
});

/** A web address, or null. */
const link = orNull(z.object({ web: z.object({ href: z.string().regex(/^https?:\/\//i) }) })).transform(
  (links) => links?.web.href ?? null,
);

/** `{ "$type": "System.String", "$value": "…" }`, or the text itself. */
const typedText = z.union([z.string(), z.object({ $value: z.string() }).transform(({ $value }) => $value)]);

/** Lists are wrapped; an empty one is `null` in some answers. */
export function listOf<T extends z.ZodType>(entry: T) {
  return z.object({ value: z.array(entry).nullable() }).transform(({ value }) => value ?? []);
}

export const pool = z.object({
  id,
  name: z.string(),
  isHosted: z.boolean().catch(false),
  /** Whether the service updates agents of this pool by itself; null when it does not say. */
  autoUpdate: orNull(z.boolean()),
});
export type AzureAgentPool = z.output<typeof pool>;

/** Demands are texts on the wire, and objects in the types of its clients. */
const demand = z.union([
  z.string(),
  z
    .object({ name: z.string(), value: z.string().nullish() })
    .transform(({ name, value }) => (value == null ? name : `${name} -equals ${value}`)),
]);

const named = z.object({ id, name: words, _links: link }).transform(({ _links, ...rest }) => ({ ...rest, link: _links }));

/** A job as its pool knows it. Times are ms since the epoch. */
export const jobRequest = z.object({
  requestId: id,
  queueTime: time,
  assignTime: time,
  receiveTime: time,
  finishTime: time,
  /** `succeeded`, `failed`, `canceled`, `abandoned`, …; null while it has none. */
  result: words,
  scopeId: words,
  planType: words,
  /** The id of its record in the timeline of its build. */
  jobId: words,
  jobName: words,
  demands: orNull(z.array(demand)).transform((found) => found ?? []),
  reservedAgent: orNull(z.object({ id })),
  /** Agents that meet its demands, online or not; null when the service does not say. */
  matchedAgents: orNull(z.array(z.object({ id, name: words }))),
  matchesAllAgentsInPool: z.boolean().catch(false),
  definition: orNull(named),
  /** Its build; `id` is the build's. */
  owner: orNull(named),
});
export type JobRequest = z.output<typeof jobRequest>;

/** The service tells it by the times that it has set. */
export function requestState(request: JobRequest): 'waiting' | 'assigned' | 'running' | 'done' {
  if (request.result !== null || request.finishTime !== null) return 'done';
  if (request.receiveTime !== null) return 'running';
  return request.reservedAgent !== null || request.assignTime !== null ? 'assigned' : 'waiting';
}

const statuses = new Map<unknown, 'online' | 'offline'>([
  ['online', 'online'],
  ['offline', 'offline'],
  [2, 'online'],
  [1, 'offline'],
]);

export const agent = z.object({
  id,
  name: z.string(),
  enabled: z.boolean().catch(true),
  /** null: a word that onejob does not know, so nothing follows from it. There is none for busy: see `assignedRequest`. */
  status: z
    .unknown()
    .optional()
    .transform((found) => statuses.get(typeof found === 'string' ? found.toLowerCase() : found) ?? null),
  systemCapabilities: texts,
  userCapabilities: texts,
  /** The job it has; null without one, and unless asked for. An unreadable job must not look like null. */
  assignedRequest: jobRequest.nullish().transform((found) => found ?? null),
});
export type Agent = z.output<typeof agent>;

export const registeredAgent = z
  .object({
    id,
    name: z.string(),
    authorization: orNull(z.object({ clientId: z.string().min(1), authorizationUrl: z.url({ protocol: /^https?$/ }) })),
    properties: orNull(z.object({ ServerUrl: typedText })),
  })
  .transform(({ properties, ...rest }) => ({ ...rest, serverUrl: properties?.ServerUrl ?? null }));
/** `authorization` is null when the service gave none: such an agent can never sign in. */
export type RegisteredAgent = z.output<typeof registeredAgent>;

export interface NewAgent {
  readonly name: string;
  /** Of the agent in the image: a lower one than the service wants makes it update first. */
  readonly version: string;
  readonly osDescription: string;
  /** Matched against demands until its first session replaces them. */
  readonly systemCapabilities: Readonly<Record<string, string>>;
  readonly publicKey: { readonly exponent: string; readonly modulus: string };
}

export const build = z
  .object({
    buildNumber: words,
    reason: words,
    sourceBranch: words,
    definition: orNull(z.object({ name: words })),
    repository: orNull(z.object({ id: words, name: words })),
    _links: link,
  })
  .transform(({ _links, ...rest }) => ({ ...rest, link: _links }));
export type Build = z.output<typeof build>;

/** What a build's jobs and their steps came to. A step of the agent's own has no `task`. */
const timelineRecord = z.object({
  id: z.string(),
  parentId: words,
  type: words,
  name: words,
  state: words,
  result: words,
  task: orNull(z.object({ id: words, name: words })),
  issues: orNull(z.array(z.object({ type: words, message: words }))).transform((found) => found ?? []),
});
export type TimelineRecord = z.output<typeof timelineRecord>;
/** An unreadable record must not look like a step that did not fail. */
export const timeline = z.object({ records: z.array(timelineRecord) }).transform(({ records }) => records);

export const agentPackage = z
  .object({
    version: z.union([
      z.string().regex(/^\d+\.\d+\.\d+$/),
      z.object({ major: id, minor: id, patch: id }).transform(({ major, minor, patch }) => `${major}.${minor}.${patch}`),
    ]),
    downloadUrl: z.url({ protocol: /^https?$/ }),
    hashValue: orNull(z.string().regex(/^[0-9a-f]{64}$/i)),
  })
  .transform(({ version, downloadUrl: url, hashValue }) => ({ version, url, sha256: hashValue?.toLowerCase() ?? null }));
/** One version of the agent for one platform. `sha256`: lower-case hex; null when the service does not say. */
export type AgentPackage = z.output<typeof agentPackage>;

/** Who signed in. */
export const connection = z
  .object({
    authenticatedUser: orNull(
      z.object({
        id: words,
        providerDisplayName: words,
        customDisplayName: words,
        properties: orNull(z.object({ Account: typedText })),
      }),
    ),
  })
  .transform(({ authenticatedUser: user }) => {
    const name = user?.customDisplayName ?? user?.providerDisplayName ?? user?.properties?.Account ?? null;
    return { id: user?.id ?? null, user: name };
  });

export const azureRefusal = z
  .object({ message: z.string().catch(''), typeKey: z.string().catch('') })
  .catch({ message: '', typeKey: '' });
