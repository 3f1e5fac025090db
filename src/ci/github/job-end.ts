/**
 * Where a job of GitHub failed: a job is blamed only if a step of its own failed. Pure. The runner shows what it does for a job as steps,
 * too, whose names are those of actions/runner (`JobExtension.cs`, `ActionManager.cs`).
 */
import type { FailedIn } from '../../core/job-end.ts';
import type { GithubJob } from './wire.ts';

type Ended = Pick<GithubJob, 'conclusion' | 'steps'>;

const ofRunner: ReadonlySet<string> = new Set([
  ...['Set up job', 'Set up runner', 'Initialize containers', 'Stop containers', 'Complete runner', 'Complete job'],
]);
/** Images of actions, before the first step: `Pull alpine:3`, `Build acme/tool@v1`. */
const ofImages = /^(Pull [^\s/]*[:/]\S+|Build [\w.-]+\/[\w./-]+@\S+)$/;

const isRunners = (name: string): boolean => ofRunner.has(name) || ofImages.test(name);
const failed = ({ steps }: Ended): string[] =>
  steps.filter(({ conclusion }) => conclusion === 'failure' || conclusion === 'timed_out').map(({ name }) => name);

/** null: GitHub does not show its steps. */
export function failedIn(job: Ended): FailedIn | null {
  // Its own time limit, which GitHub watches.
  if (job.conclusion === 'timed_out') return 'script';
  if (job.steps.length === 0) return null;
  return failed(job).some((name) => !isRunners(name)) ? 'script' : 'runner';
}

/** What a job wanted that failed outside of its script, and what to do, as sentences. `service`: its name in the config. */
export function whyOutside(job: Ended, { service, hasEngine }: { readonly service: string; readonly hasEngine: boolean }): string {
  const [name] = failed(job);
  if (name === undefined) return 'No step of it failed, as GitHub shows it: its runner ended in the middle of it.';
  if (name !== 'Initialize containers' && !ofImages.test(name))
    return `Its runner failed at "${name}", a step of its own. The log of that step says why.`;
  const wants = name === 'Initialize containers' ? '"container:" or "services:" in its workflow' : 'an action that is an image';
  const what = `Its runner failed at "${name}", before its script: it wants an Engine, for ${wants}`;
  if (hasEngine) return `${what}, and the one of "docker" in services.${service} did not do it. The log of that step says why.`;
  return `${what}, which sandboxes have with "containers: true" in their pool. Without, name the image in the pool and start services as processes of the job. With it, the log of that step says why.`;
}
