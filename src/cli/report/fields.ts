/** What of an answer is shown to strangers: only the fields that are named here, and of texts only public words. */
import type { PublicWords } from './public-words.ts';

/** `plain`: a number, true, false or null. `text`: any text, as public words. `[each]`: a list. A map: these keys. */
export type Fields = 'plain' | 'text' | readonly [Fields] | { readonly [key: string]: Fields };

/** What is left of `value`. What has another form than its field is left out. */
export function pick(fields: Fields, value: unknown, words: PublicWords): unknown {
  if (value === null || value === undefined) return value;
  if (fields === 'plain') return typeof value === 'number' || typeof value === 'boolean' ? value : undefined;
  if (fields === 'text') return typeof value === 'string' ? words.text(value) : undefined;
  if (Array.isArray(fields)) return Array.isArray(value) ? value.map((each) => pick(fields[0], each, words)) : undefined;
  if (typeof value !== 'object') return undefined;
  const given = value as Readonly<Record<string, unknown>>;
  return Object.fromEntries(Object.entries(fields).map(([key, inner]) => [key, pick(inner as Fields, given[key], words)]));
}

const finding = { level: 'text', subject: 'text', message: 'text', hint: 'text' } as const;
export const findingFields: Fields = [finding];

const backoff = { failures: 'plain', retryIn: 'plain', reason: 'text', waitsFor: 'text' } as const;
const slot = {
  key: 'text',
  standby: { state: 'text', since: 'plain' },
  agent: { state: 'text', online: 'plain', since: 'plain' },
  note: 'text',
  held: 'text',
} as const;
const pool = {
  name: 'text',
  service: 'text',
  runtime: 'text',
  agents: 'plain',
  waiting: 'plain',
  held: 'plain',
  problems: ['text'],
  notes: ['text'],
  paused: ['text'],
  outage: 'plain',
  draining: 'plain',
  leaving: 'plain',
  backoff,
  update: { failure: 'text', retryIn: 'plain' },
  devices: { ready: 'plain', wanted: 'plain' },
  slots: [slot],
} as const;
/** Machines in clouds are left out: their names and ids say whose they are. */
export const statusFields: Fields = {
  version: 'text',
  temporary: 'plain',
  stopping: 'plain',
  runtimeReason: 'text',
  weaker: 'text',
  configChanged: 'text',
  problems: ['text'],
  missing: [{ uuid: 'text', slot: 'text', why: 'text' }],
  quarantined: [{ uuid: 'text', pool: 'text', why: 'text' }],
  pools: [pool],
};

const spread: Fields = { min: 'plain', median: 'plain', max: 'plain' };

/** Not its command, name, user, branch, link, files or variables. */
export const jobFields: Fields = {
  id: 'text',
  service: 'text',
  pool: 'text',
  state: 'text',
  attempt: 'plain',
  agent: 'text',
  result: { kind: 'text', code: 'plain', signal: 'text', word: 'text' },
  outcome: 'text',
  reason: 'text',
  cold: 'plain',
  submittedAt: 'plain',
  startedAt: 'plain',
  firstOutputAt: 'plain',
  endedAt: 'plain',
  limits: { memory: 'plain', cpus: 'plain', timeout: 'plain' },
  image: 'text',
  devices: ['text'],
  verdict: { kind: 'text', why: 'text', evidence: ['text'] },
  variance: {
    samples: 'plain',
    temperature: spread,
    smClockMHz: spread,
    memoryClockMHz: spread,
    throttled: [{ reason: 'text', seconds: 'plain' }],
    notes: ['text'],
  },
};
