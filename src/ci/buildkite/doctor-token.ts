/** What `doctor` says of a service's tokens, its queues, and both clocks. Asks only. */
import { OnejobError, toFailure } from '../../errors.ts';
import type { Finding } from '../../runtimes/runtime.ts';
import { howToReplace } from '../../secrets/reference.ts';
import type { QueueCounts, TokenIdentity } from './api.ts';
import type { DoctorParts } from './doctor.ts';

export type TokenParts = Pick<DoctorParts, 'config' | 'pools' | 'api' | 'token' | 'metricsToken' | 'clock'>;

/** ms between both clocks. A service that signs addresses for uploads refuses requests that are minutes off. */
const [skewWarning, skewError] = [30_000, 300_000];
/** ms before its end from which a token is told of. */
const soon = 14 * 86_400_000;

export async function tokenFindings(parts: TokenParts, signal: AbortSignal): Promise<Finding[]> {
  const { config, api } = parts;
  const subject = `service ${config.name}`;
  const say = says(subject);
  const found: Finding[] = [];
  let skew: number | null = null;

  try {
    const told = await api.identity((await parts.token()).trim(), signal);
    if (told === null) {
      found.push(say('warning', `${config.endpoint} does not say what the token is.`, 'See whether "endpoint" is the Agent API.'));
    } else {
      skew = told.skew;
      found.push(...ofIdentity(told.value, parts, say));
    }
  } catch (error) {
    // Without the service there is no more to be found out.
    return [failing(subject, 'error', error, signal, `${howToReplace(config.token)}.`)];
  }

  try {
    const told = await api.counts((await (parts.metricsToken ?? parts.token)()).trim(), signal);
    skew ??= told.skew;
    found.push(...ofQueues(told.value, parts, say));
  } catch (error) {
    const { metricsToken } = config;
    const hint =
      metricsToken === null
        ? 'Give "metrics_token" a token that may read metrics; all but the counts works without.'
        : `${howToReplace(metricsToken)}, or remove "metrics_token"; all but the counts works without.`;
    found.push(failing(subject, 'warning', error, signal, hint));
  }
  return [...found, ...ofClock(skew, say)];
}

type Say = (level: Finding['level'], message: string, hint?: string | null) => Finding;

function says(subject: string): Say {
  return (level, message, hint = null) => ({ level, subject, message, hint });
}

/** Whose a token is, as the end of a sentence: ` of organisation …, cluster …, for queue … only`. */
export function whatIs({ organisation, cluster, queue }: TokenIdentity): string {
  const of = organisation === null ? '' : ` of organisation ${organisation}`;
  const where = cluster === null ? '' : `, cluster ${JSON.stringify(cluster)}`;
  return `${of}${where}${queue === null ? '' : `, for queue ${JSON.stringify(queue)} only`}`;
}

function ofIdentity(identity: TokenIdentity, { config, pools, clock }: TokenParts, say: Say): Finding[] {
  const { cluster, queue, type, expires } = identity;
  const found = [say('ok', `${config.endpoint} takes the token${whatIs(identity)}${type === null ? '' : ` (${type})`}.`)];
  for (const pool of pools) {
    if (queue === null || pool.queue === queue) continue;
    const message = `The token is for queue ${JSON.stringify(queue)} only, and pool ${pool.name} takes its jobs from ${JSON.stringify(pool.queue)}.`;
    found.push(say('error', message, `Write "queue: ${queue}" in pool ${pool.name}, or use a token of the whole cluster.`));
  }
  if (config.registration === 'in-agent') {
    const whose = pools.map(({ name }) => name).join(', ');
    const message = `The agent token enters every sandbox ("registration: in-agent"): every job of ${pools.length === 1 ? 'pool' : 'pools'} ${whose} can read it, and take any job with it.`;
    const other = 'Take "registration" out: the token is of a cluster, so that onejob can reserve jobs with it.';
    const hint =
      cluster === null ? 'Let nobody but trusted people make jobs for these queues; clusters would do without it.' : other;
    found.push(say('warning', message, hint));
  } else if (cluster === null) {
    const message = 'The token is of no cluster, and only the jobs of a cluster can be reserved.';
    const how =
      'Use a token of a cluster: on the website Agents, the cluster, Agent Tokens. Without clusters: "registration: in-agent".';
    found.push(say('error', message, how));
  }
  if (expires !== null && expires - clock.wall() < soon) {
    const day = new Date(expires).toISOString().slice(0, 10);
    const isOver = expires <= clock.wall();
    const message = isOver ? `The token was good until ${day}.` : `The token is good until ${day} only.`;
    found.push(say(isOver ? 'error' : 'warning', message, `Make a new one. ${howToReplace(config.token)}.`));
  }
  return found;
}

function ofQueues({ known, scheduled }: QueueCounts, { pools }: TokenParts, say: Say): Finding[] {
  const queues = [...new Set(pools.map(({ queue }) => queue))];
  return queues.map((queue) => {
    const name = JSON.stringify(queue);
    if (known.has(queue)) return say('ok', `Queue ${name} is there; ${howManyWait(scheduled.get(queue) ?? 0)} in it.`);
    const message = `The service does not speak of queue ${name}: it has no agent and no job there, or there is no such queue.`;
    const others = [...known].toSorted().slice(0, 5);
    const those = others.length === 0 ? '' : ` It speaks of ${others.join(', ')}.`;
    return say('warning', message, `Make it on the website (Agents, the cluster, Queues), or mend "queue" of the pool.${those}`);
  });
}

export function howManyWait(jobs: number): string {
  return jobs === 1 ? 'one job waits' : `${jobs} jobs wait`;
}

function ofClock(skew: number | null, say: Say): Finding[] {
  if (skew === null || Math.abs(skew) <= skewWarning) return [];
  const seconds = Math.round(Math.abs(skew) / 1000);
  const message = `This host's clock is ${seconds} s ${skew > 0 ? 'behind' : 'ahead of'} the service's; times of jobs are wrong, and uploads may be refused.`;
  const level = Math.abs(skew) > skewError ? 'error' : 'warning';
  return [say(level, message, 'Let the clock be set by NTP, such as "timedatectl set-ntp true".')];
}

/** `refused`: what to do about a token that the service does not take. */
function failing(subject: string, level: 'warning' | 'error', error: unknown, signal: AbortSignal, refused: string): Finding {
  signal.throwIfAborted();
  const { code, message, hint } = saidOf(error);
  const isRefused = code === 'E_CI_CREDENTIAL' || code === 'E_CI_DENIED';
  return { level, subject, message, hint: isRefused ? refused : (hint ?? 'Ask again later.') };
}

/** What went wrong, and what to do about it. */
export function saidOf(error: unknown): { readonly code: string; readonly message: string; readonly hint: string | null } {
  return error instanceof OnejobError ? error : { ...toFailure(error), hint: null };
}
