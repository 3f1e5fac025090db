/**
 * What a machine and its controller say to each other: HTTP with JSON. The machine always calls. Before it has joined it shows the
 * join token of its cloud-init text, which is good for one exchange; after that, a credential that it made itself.
 *
 *     POST /cloud/stage            Bearer token or credential   Stage              -> 204
 *     POST /cloud/join             in the body                  Join               -> JoinAnswer
 *     POST /cloud/beat             Bearer credential            Beat               -> BeatAnswer
 *     GET  /cloud/onejob.tgz?run=  Bearer token or credential                      -> the package
 *     GET  /cloud/tunnel?run=      Bearer credential            Upgrade            -> connections to the machine's onejob
 *
 * 403: the run is unknown or given up, or the secret is not its own; never says which. 503: try again.
 */
import { createHash, randomBytes } from 'node:crypto';
import { z } from 'zod';
import { isLoopback } from '../../http/address.ts';

/** What a machine upgrades a connection to, for connections of the controller to the machine's onejob (`createMux`). */
export const tunnelProtocol = 'onejob-tunnel';

/** Longest text of a stage, in characters; longer ones lose their beginning. */
export const stageText = 16 * 1024;

/** Name of one machine, see `Birth` of ../cloud.ts. */
export const runName = z.string().regex(/^onejob-[0-9a-f]{16}$/);
/** 32 random bytes in base64url: a join token, or a machine's credential. */
export const secretText = z.string().regex(/^[A-Za-z0-9_-]{43}$/);

/** What a machine tells on its way. Those of `early` come from the boot script, before the join or instead of it. */
export const stageNames = ['booted', 'driver-ok', 'docker-ok', 'joined', 'drained', 'preempted', 'failed'] as const;
export type StageName = (typeof stageNames)[number];
export const early: ReadonlySet<StageName> = new Set<StageName>(['booted', 'driver-ok', 'docker-ok', 'failed']);

/** `text`: when the machine ends (preempted), the end of the log (failed), or what it is (driver-ok: the GPUs). */
export const stageCall = z.object({ run: runName, stage: z.enum(stageNames), text: z.string().max(stageText).default('') });
export type StageCall = z.output<typeof stageCall>;

export const joinCall = z.object({ run: runName, token: secretText, credential: secretText, version: z.string().min(1).max(64) });
export type JoinCall = z.output<typeof joinCall>;

/** A file that the machine gets. Its folder must be one of `folders` of machine.ts. */
export const joinFile = z.object({
  path: z.string().max(4096),
  /** As of chmod: `0600`. */
  mode: z.string().regex(/^0[0-7]{3}$/),
  /** base64 */
  content: z.string(),
});
export type JoinFile = z.output<typeof joinFile>;

export const joinAnswer = z.object({
  /** The machine's config, YAML. */
  config: z.string(),
  files: z.array(joinFile),
  /** Seconds from one beat to the next. */
  beat: z.number().min(1).max(3600),
  /** Whether the controller has jobs of its own queue for the machine, which then opens a tunnel for them. */
  tunnel: z.boolean().optional(),
});
export type JoinAnswer = z.output<typeof joinAnswer>;

const count = z.int().min(0).max(100_000);
export const beatCall = z.object({
  run: runName,
  /** Jobs that run. */
  busy: count,
  /** Agents that exist, with and without a job, those that are being removed included. */
  agents: count,
  /** Jobs that can run at the same time; null: as many as there are agents. */
  slots: count.nullable().default(null),
  /** Jobs that wait for this machine's pools, as far as it knows; null: not at all. */
  waiting: count.nullable().default(null),
  /** ms without a job. */
  idleFor: z.number().min(0),
  /** Why the machine cannot work, in one line; null: it can. */
  problem: z.string().max(1000).nullable().default(null),
});
export type BeatCall = z.output<typeof beatCall>;

/** `stay`: continue. `drain`: finish the jobs that run, take no others, then say `drained`. `end`: end the jobs, too. */
export const beatAnswer = z.object({ do: z.enum(['stay', 'drain', 'end']) });
export type Order = z.output<typeof beatAnswer>['do'];

/** A new join token or credential: 256 random bits. */
export function newSecret(): string {
  return randomBytes(32).toString('base64url');
}

/** What is stored of a secret: SHA-256 in hexadecimal. It needs no salt, since the secret is random. */
export function hashOf(secret: string): string {
  return createHash('sha256').update(secret).digest('hex');
}

/** A text of a machine without control characters, except for ends of lines. */
export const plain = (text: string): string => text.replace(/[^\P{Cc}\n]/gu, ' ');

/** Why secrets must not be sent to a controller at this address, as the end of a sentence; null: they may. */
export function addressProblem(url: string): string | null {
  const found = URL.parse(url);
  if (found === null || !/^https?:$/.test(found.protocol)) return 'is not an http address';
  if (found.username !== '' || found.password !== '' || found.search !== '' || found.hash !== '')
    return 'must have no user, password, query or fragment';
  const isSafe = found.protocol === 'https:' || isLoopback(found.hostname.replace(/^\[|\]$/g, ''));
  return isSafe ? null : 'must be https: secrets of jobs travel over it';
}

/** What a machine boots with, `machine.json`. */
export const machineFile = z.object({
  run: runName,
  /** Of the controller; null: it is told and heard through the cloud, see line.ts and mail.ts. */
  url: z
    .string()
    .refine((url) => addressProblem(url) === null, 'must be https, without user, query and fragment')
    .nullable(),
  /** Of no use after the join. */
  token: secretText,
  /** `command`: who knows what its metadata service says. `none`: a machine of a test, without one. */
  cloud: z.enum(['aws', 'gcp', 'azure', 'command', 'none']),
  /** Whether a shutdown inside the machine ends it for good. Only then does it end itself. */
  guestEnds: z.boolean(),
  /** s without both a job and an answer of the controller, after which it drains itself. */
  away: z.number().positive(),
});
export type MachineFile = z.output<typeof machineFile>;
