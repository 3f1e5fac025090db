/** What `onejob doctor` says of GitLab: each a sentence with what to do. */
import type { Finding } from '../../base/finding.ts';
import { clockFindings, ServiceReport } from '../kit/doctor.ts';
import { namesProjects } from '../kit/trust.ts';
import type { RunnerScope } from './client.ts';
import type { GitlabParts } from './parts.ts';

/** `trouble`: why there are no jobs now; null: no problem is known. */
export async function gitlabFindings(
  {
    config,
    pools,
    client,
    program,
    filter,
    clock,
  }: Pick<GitlabParts, 'config' | 'pools' | 'client' | 'program' | 'filter' | 'clock'>,
  trouble: string | null,
  signal: AbortSignal,
): Promise<Finding[]> {
  const report = new ServiceReport(config.name, signal);
  const { state } = program;
  report.runner(state);
  if (pools.length === 0) report.warn('No pool uses it.', `Write "service: ${config.name}" in a pool.`);
  for (const { name, trust } of pools) {
    if (namesProjects(trust)) continue;
    const [what, how] = openTo(name, client.runnerScope);
    report.warn(what, how);
  }
  if (filter === null) report.warn('This manager is temporary and takes no jobs of GitLab.', 'Start one with "onejob up".');
  report.add((await filter?.check()) ?? []);
  await report.ask(async () => {
    const { id, date } = await client.verify(state.kind === 'ready' ? state.version : 'unknown', signal);
    report.ok(`${config.url} accepts the token, which is that of runner ${id === null ? 'with an unknown id' : `#${id}`}.`);
    const theirs = Date.parse(date ?? '');
    const skew = Number.isNaN(theirs) ? null : theirs - clock.wall();
    // The date has whole seconds.
    report.add(clockFindings(report.subject, skew, [30_000, 300_000], 'times in logs of jobs are wrong by as much'));
    if (trouble !== null) report.problem(trouble, '"onejob status" shows when it works again.');
  });
  return report.found;
}

/** What it means that a pool names no project, and whether that is to be changed. */
function openTo(pool: string, whose: RunnerScope): readonly [what: string, how: string] {
  const trusts = `Pool ${pool} trusts jobs of every project that its runner runs`;
  const names = 'name the projects: trust: { others: refuse, pipelines: [acme/demo] }.';
  switch (whose) {
    case 'instance':
      return [
        `${trusts}. As its jobs say, it is a runner of the whole instance (instance_type): a fork that anybody makes there is trusted, too.`,
        `To keep forks out, ${names}`,
      ];
    case 'smaller':
      return [
        `${trusts}. As its jobs say, it is a runner of a group or a project.`,
        `If its group has forks, ${names} Else there is nothing to do.`,
      ];
    default: {
      const asks = `If it is one of the whole instance (instance_type), or of a group with forks, ${names} Else there is nothing to do.`;
      return whose === 'untold'
        ? [`${trusts}. Its jobs do not say whose runner it is.`, asks]
        : [`${trusts}. No job has come since onejob started, and GitLab says only with a job whose runner it is.`, asks];
    }
  }
}
