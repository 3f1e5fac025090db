/** How much one sandbox may ask of the gateway, and for how long anything is waited for. */
import type { ServerOptions } from 'node:http';

export interface GatewayLimits {
  /** How long an `accept` or `acquire` waits for the manager's decision, ms. The agent itself gives up after 60 s. */
  readonly decisionMs: number;
  /** Without a byte in either direction for so long, a call is cut, ms. */
  readonly idleMs: number;
  /** Longest a call may take whose body is read whole before it goes on, ms. */
  readonly wholeMs: number;
  /** How long the rest of a body may take whose call was answered already, ms. */
  readonly lateMs: number;
  /** How long a call of a job may go on after the job's end, ms. */
  readonly afterJobMs: number;
  /** Largest body of such a call, bytes. */
  readonly wholeBytes: number;
  /** Largest body that names artifacts to come, bytes: the agent sends 30 at a time. */
  readonly batchBytes: number;
  /** Largest answer that is read whole and rewritten, bytes: a job with its environment, addresses for a batch of uploads. */
  readonly answerBytes: number;
  /** Of those calls, how many at a time of one agent, and of its job. */
  readonly reading: number;
  /** What is held of such bodies for all agents together, bytes. */
  readonly readBytes: number;
  /** Between two times that an agent's leaving in the middle of its job is written down, ms. */
  readonly leavingMs: number;
  /** Calls at a time of one agent's job, but for uploads and what its agent says of it. */
  readonly concurrent: number;
  /** Calls at a time by which an agent lives, and its job's beginning, log and end. */
  readonly words: number;
  /** Uploads at a time of one agent's job. */
  readonly uploads: number;
  /** More of them, unread: an agent begins one for each thread of its host. Each costs some 150 kB. */
  readonly waiting: number;
  /** Calls per second of each kind that one agent is served; more wait. */
  readonly perSecond: number;
  /** Of them, so many at once after a rest. */
  readonly burst: number;
  /** Longest path with its query, characters. */
  readonly url: number;
}

export const gatewayLimits: GatewayLimits = {
  decisionMs: 50_000,
  idleMs: 300_000,
  wholeMs: 60_000,
  lateMs: 10_000,
  afterJobMs: 60_000,
  wholeBytes: 64 * 1024,
  batchBytes: 1024 * 1024,
  answerBytes: 16 * 1024 * 1024,
  reading: 4,
  readBytes: 64 * 1024 * 1024,
  leavingMs: 10_000,
  concurrent: 64,
  words: 32,
  uploads: 64,
  waiting: 192,
  perSecond: 200,
  burst: 400,
  url: 12_000,
};

/**
 * For `http.createServer(gatewayServerOptions, gateway.handle)`. An upload may take hours, so only its head has a deadline. The
 * agent's HTTP client keeps idle connections for 90 s: closing earlier than it would make it lose a call now and then.
 */
export const gatewayServerOptions: ServerOptions = {
  requestTimeout: 0,
  headersTimeout: 30_000,
  keepAliveTimeout: 120_000,
  maxHeaderSize: 16 * 1024,
  insecureHTTPParser: false,
  requireHostHeader: true,
  noDelay: true,
};
