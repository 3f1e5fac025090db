/** What `onejob doctor` says of Gitea: each a sentence with what to do. */

import { type Finding, fine, problem, warning } from '../../base/finding.ts';
import { compareVersions, leadingVersion } from '../../base/version.ts';
import type { PoolConfig } from '../../config/config.ts';
import { saidOf } from '../service-findings.ts';
import type { GiteaParts } from './parts.ts';
import type { createPlaces } from './registry.ts';
import { labelsOf } from './type.ts';

/** The first that can disable a runner (its changelog, #36776), which keeps jobs from an agent that ends. 1.26.4 was tried. */
const oldest = '1.26.0';
/** ms after which the server gives a job up (`[actions] ENDLESS_TASK_TIMEOUT`). */
const endless = 3 * 3_600_000;

/** What of the server is this host's. */
interface Ours {
  readonly places: ReturnType<typeof createPlaces>;
  /** Whether a runner with that name is. */
  isOurs(name: string): boolean;
  /** Registrations that are not removed yet. */
  readonly left: number;
}

export async function giteaFindings(
  { config, pools, client, program }: Pick<GiteaParts, 'config' | 'pools' | 'client' | 'program'>,
  { places, isOurs, left }: Ours,
  signal: AbortSignal,
): Promise<Finding[]> {
  const subject = `service ${config.name}`;
  const found: Finding[] = [];
  const refused = (error: unknown): void => {
    signal.throwIfAborted();
    const { message, hint } = saidOf(error);
    found.push(problem(subject, message, hint ?? 'Try again later.'));
  };

  try {
    const { version } = await client.version(signal);
    // Forgejo says "11.0.1+gitea-1.22.0".
    const isForgejo = /\+gitea-/.test(version);
    found.push(fine(subject, `${config.url} answers with ${isForgejo ? 'Forgejo' : 'Gitea'} ${version}.`));
    if (isForgejo) found.push(warning(subject, 'onejob was never tried with Forgejo.', 'Report what works and what does not.'));
    else if (leadingVersion(version) === null)
      found.push(warning(subject, `onejob cannot tell whether Gitea ${version} is new enough.`, `It needs ${oldest}.`));
    else if (compareVersions(leadingVersion(version) ?? '0', oldest) < 0)
      found.push(
        problem(
          subject,
          `Gitea ${version} cannot disable a runner, so onejob cannot keep jobs from an agent that ends.`,
          `Upgrade it to ${oldest} or newer.`,
        ),
      );
    if (pools.length > 0) await client.seesJobs(signal);
  } catch (error) {
    refused(error);
    return found;
  }
  const { state } = program;
  if (state.kind === 'ready') found.push(fine(subject, `The runner is version ${state.version}, at ${state.path}.`));
  if (state.kind === 'failed')
    found.push(problem(subject, state.failure.message, 'Fix "agent" of the service; onejob tries again every 30 s.'));
  for (const [queue, own] of Map.groupBy(pools, (pool) => pool.queue)) await ofQueue(queue, own).catch(refused);
  if (pools.length === 0 && left > 0)
    found.push(
      warning(
        subject,
        `No pool of the config uses service ${config.name}, which still has runners that onejob registered.`,
        'onejob removes them when their agents are gone.',
      ),
    );
  return found;

  async function ofQueue(queue: string, own: readonly PoolConfig[]): Promise<void> {
    const place = await places.find(queue, signal);
    const title = places.titleOf(queue);
    const runners = await client.runners(place, signal);
    const ours = runners.filter(({ name }) => isOurs(name));
    // Changes nothing: the server answers the token that it has.
    await client.registrationToken(place, signal);
    found.push(fine(subject, `onejob may manage the runners of ${title}: ${runners.length}, ${ours.length} of them of this host.`));
    const unfit = (await client.jobs(place, 'queued', signal)).filter(
      (job) => !own.some((pool) => job.labels.every((label) => labelsOf(pool).includes(label))),
    );
    if (unfit.length > 0) {
      const asked = [...new Set(unfit.map((job) => job.labels.join(' and ')))].slice(0, 5).join(', ');
      found.push(
        warning(
          subject,
          `${unfit.length} ${unfit.length === 1 ? 'job' : 'jobs'} of ${title} wait for labels that no pool of this host has: ${asked}.`,
          'If they are meant for this host, compare "runs-on" in the workflow with "tags" of the pool, or its name if it has none.',
        ),
      );
    }
    // Machines in a cloud are others by nature.
    const labels = new Set(own.flatMap((pool) => (pool.elsewhere === undefined ? labelsOf(pool) : [])));
    const others = runners.filter((one) => !ours.includes(one) && one.labels.some((label) => labels.has(label)));
    if (others.length > 0) {
      const names = others.slice(0, 5).map(({ name }) => name);
      found.push(
        warning(
          subject,
          `Other runners of ${title} have the same labels as pools of this host: ${names.join(', ')}${others.length > 5 ? ' and more' : ''}. They take jobs that were meant for it.`,
          'Give the pool labels of its own with "tags", unless these runners are other hosts with the same pool.',
        ),
      );
    }
    const long = own.filter(({ timeout }) => timeout === null || timeout > endless);
    if (long.length > 0)
      found.push(
        fine(
          subject,
          `The server ends jobs after ENDLESS_TASK_TIMEOUT (3 hours by default), whatever pool ${long.map(({ name }) => name).join(', ')} allows.`,
        ),
      );
  }
}
