/** `onejob status --all`, `doctor --all` and `jobs --all-hosts`: every host of the hosts file in one table. */
import type { JobView, PoolView, StatusView } from '../contract/schema.ts';
import { systemClock } from '../system/system-clock.ts';
import { askHosts, type HostAnswer, hostProblems } from './every-host.ts';
import { exitCodes, wrongUsage } from './exit.ts';
import { jobTable } from './jobs.ts';
import type { Session } from './session.ts';
import { deviceProblems, isBusy, isWell, poolProblems } from './status.ts';
import { plural, titledTable } from './text.ts';

type Output = Session['output'];

/** 1 when a host has no daemon that answers, or not all is well there. */
export async function showAll(session: Session): Promise<number> {
  const { output } = session;
  const found = await askHosts(session, (client) => client.status());
  if (output.json) for (const { answer: status, error, ...about } of found) await output.value({ ...about, status, error });
  else await output.print(...statusLines(found, output));
  return found.every(({ answer }) => answer !== null && isWell(answer)) ? exitCodes.ok : exitCodes.failed;
}

/** A line for each host, then what is wrong. */
function statusLines(found: readonly HostAnswer<StatusView>[], output: Output): string[] {
  const { colors } = output;
  const rows = found.map(({ host, answer: status }) => {
    if (status === null) return { HOST: host, STATE: colors.red('unreachable'), BUSY: '-', WAITING: '-', VERSION: '-' };
    const slots = status.pools.flatMap((pool) => pool.slots);
    const waiting = status.pools.map((pool) => pool.waiting ?? 0).reduce((sum, count) => sum + count, 0);
    const state = status.stopping
      ? colors.yellow('stopping')
      : problemsOf(status).length > 0
        ? colors.yellow('problems')
        : colors.green('ok');
    const busy = `${slots.filter(isBusy).length}/${slots.length}`;
    return { HOST: host, STATE: state, BUSY: busy, WAITING: `${waiting}`, VERSION: status.version };
  });
  return withProblems(rows, hostProblems(found, output, problemsOf), output);
}

function withProblems(rows: readonly Record<string, string>[], problems: readonly string[], { colors, width }: Output): string[] {
  if (rows.length === 0) return ['No hosts.'];
  return [...titledTable(rows, { colors, width }), ...(problems.length === 0 ? [] : ['', ...problems])];
}

function problemsOf(status: StatusView): string[] {
  const ofPool = (pool: PoolView) =>
    [...poolProblems(pool), ...deviceProblems(pool, status)].map((text) => `${pool.name}: ${text}`);
  return [...(status.configChanged === null ? [] : [status.configChanged]), ...status.problems, ...status.pools.flatMap(ofPool)];
}

/** 1 when a host has no daemon that answers, or finds an error. */
export async function doctorAll(session: Session): Promise<number> {
  const { output } = session;
  const { colors } = output;
  const found = await askHosts(session, (client) => client.call('GET /v1/doctor'));
  if (output.json) for (const { answer: findings, error, ...about } of found) await output.value({ ...about, findings, error });
  else {
    const rows = found.map(({ host, answer }) => {
      if (answer === null) return { HOST: host, STATE: colors.red('unreachable') };
      const [errors, warnings] = (['error', 'warning'] as const).map((one) => answer.filter(({ level }) => level === one).length);
      const said = `${plural(errors ?? 0, 'error')}, ${plural(warnings ?? 0, 'warning')}`;
      return { HOST: host, STATE: errors ? colors.red(said) : warnings ? colors.yellow(said) : colors.green('ok') };
    });
    const texts = hostProblems(found, output, (findings) =>
      findings.flatMap(({ level, subject, message, hint }) =>
        level === 'ok' ? [] : [`${level}: ${subject}: ${message}${hint === null ? '' : ` ${hint}`}`],
      ),
    );
    await output.print(...withProblems(rows, texts, output));
  }
  const isFine = ({ answer }: (typeof found)[number]) => answer?.every(({ level }) => level !== 'error') === true;
  return found.every(isFine) ? exitCodes.ok : exitCodes.failed;
}

/** What waits or runs on all hosts. 1 when a host has no daemon that answers. */
export async function jobsOfAll(session: Session, only: string | null): Promise<number> {
  if (only !== null)
    throw wrongUsage(
      '"--all-hosts" lists all jobs: remove it, or the job.',
      '"onejob --host HOST jobs JOB" finds a job of another host.',
    );
  const { output } = session;
  const found = await askHosts(session, (client) => client.jobs({ all: false, pool: null }));
  if (output.json) for (const { answer: jobs, error, ...about } of found) await output.value({ ...about, jobs, error });
  else {
    const hostOf = new Map(found.flatMap(({ host, answer }) => (answer ?? []).map((job) => [job, host] as const)));
    const jobs: JobView[] = [...hostOf.keys()];
    const table =
      jobs.length === 0 ? ['No jobs wait or run.'] : jobTable(jobs, output.colors, output.width, systemClock.wall(), { hostOf });
    const problems = hostProblems(found, output, () => []);
    await output.print(...table, ...(problems.length === 0 ? [] : ['', ...problems]));
  }
  return found.every(({ answer }) => answer !== null) ? exitCodes.ok : exitCodes.failed;
}
