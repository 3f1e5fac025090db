/** What `onejob doctor` says of Gitea: each a sentence with what to do. */

import type { Finding } from '../../base/finding.ts';
import { compareVersions, leadingVersion } from '../../base/version.ts';
import type { PoolConfig } from '../../config/config.ts';
import { ServiceReport } from '../kit/doctor.ts';
import type { GiteaParts } from './parts.ts';
import type { Places } from './registry.ts';
import { labelsOf } from './type.ts';

/** The first that can disable a runner (its changelog, #36776), which keeps jobs from an agent that ends. 1.26.4 was tried. */
const oldest = '1.26.0';
/** ms after which the server gives a job up (`[actions] ENDLESS_TASK_TIMEOUT`). */
const endless = 3 * 3_600_000;

export const howToFit = 'Compare "runs-on" in the workflow with "tags" of the pool, or its name if it has none.';

/** What of the server is this host's. */
interface Ours {
  readonly places: Places;
  /** Whether a runner with that name is. */
  isOurs(name: string): boolean;
  /** Registrations that are not removed yet. */
  readonly left: number;
}

type Parts = Pick<GiteaParts, 'config' | 'pools' | 'client' | 'program'>;

export async function giteaFindings(parts: Parts, ours: Ours, signal: AbortSignal): Promise<Finding[]> {
  const { config, pools, program } = parts;
  const report = new ServiceReport(config.name, signal);
  const isThere = await report.ask(async () => {
    await ofServer(parts, report, signal);
    if (pools.length > 0) await parts.client.seesJobs(signal);
  });
  if (!isThere) return report.found;
  report.runner(program.state);
  for (const [queue, own] of Map.groupBy(pools, (pool) => pool.queue))
    await report.ask(() => ofQueue(queue, own, { ...parts, ...ours, report, signal }));
  if (pools.length === 0) report.unused(ours.left);
  return report.found;
}

async function ofServer({ config, client }: Parts, report: ServiceReport, signal: AbortSignal): Promise<void> {
  const { version } = await client.version(signal);
  // Forgejo says "11.0.1+gitea-1.22.0".
  const isForgejo = /\+gitea-/.test(version);
  report.ok(`${config.url} answers with ${isForgejo ? 'Forgejo' : 'Gitea'} ${version}.`);
  if (isForgejo) report.warn('onejob was never tried with Forgejo.', 'Report what works and what does not.');
  else if (leadingVersion(version) === null)
    report.warn(`onejob cannot tell whether Gitea ${version} is new enough.`, `It needs ${oldest}.`);
  else if (compareVersions(leadingVersion(version) ?? '0', oldest) < 0)
    report.problem(
      `Gitea ${version} cannot disable a runner, so onejob cannot keep jobs from an agent that ends.`,
      `Upgrade it to ${oldest} or newer.`,
    );
}

interface Asking extends Parts, Ours {
  readonly report: ServiceReport;
  readonly signal: AbortSignal;
}

async function ofQueue(queue: string, own: readonly PoolConfig[], asking: Asking): Promise<void> {
  const { client, places, isOurs, report, signal } = asking;
  const place = await places.find(queue, signal);
  const title = places.titleOf(queue);
  const runners = await client.runners(place, signal);
  const ours = runners.filter(({ name }) => isOurs(name));
  // Changes nothing: the server answers the token that it has.
  await client.registrationToken(place, signal);
  report.ok(`onejob may manage the runners of ${title}: ${runners.length}, ${ours.length} of them of this host.`);
  const unfit = (await client.jobs(place, 'queued', signal)).filter(
    (job) => !own.some((pool) => job.labels.every((label) => labelsOf(pool).includes(label))),
  );
  if (unfit.length > 0) {
    const asked = [...new Set(unfit.map((job) => job.labels.join(' and ')))].slice(0, 5).join(', ');
    report.warn(
      `${unfit.length} ${unfit.length === 1 ? 'job' : 'jobs'} of ${title} wait for labels that no pool of this host has: ${asked}.`,
      `If they are meant for this host: ${howToFit}`,
      'unfit-jobs',
    );
  }
  // Machines in a cloud are others by nature.
  const labels = new Set(own.flatMap((pool) => (pool.elsewhere === undefined ? labelsOf(pool) : [])));
  const others = runners.filter((one) => !ours.includes(one) && one.labels.some((label) => labels.has(label)));
  report.rivals(
    title,
    'the same labels as pools of this host',
    others.map(({ name }) => name),
  );
  const long = own.filter(({ timeout }) => timeout === null || timeout > endless).map(({ name }) => name);
  if (long.length > 0)
    report.ok(`The server ends jobs after ENDLESS_TASK_TIMEOUT (3 hours by default), whatever pool ${long.join(', ')} allows.`);
}
