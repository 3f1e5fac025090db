/**
 * gitlab-runner 19.4, reduced: built once from the module proxy with the executors custom, shell and docker. Ten of its modules are
 * not there, so what needs them is left out: native steps, inputs, autoscalers, Kubernetes, billing and the wrapper. What the rest
 * calls of them is in `gitlab-go/`. Also a command: `node test/support/gitlab-programs.ts` builds it where Go is there.
 */
import { existsSync } from 'node:fs';
import { cp, glob, mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { go, hasGo, inCache, madeOnce, moduleFolder } from './go-program.ts';

export const gitlabRunnerVersion = '19.4.0';
/** The commit of that version; the proxy knows no tags of it. */
const revision = 'v1.11.1-0.20260903214710-fc1f1862bd91';

/** Where it is, or would be. */
export const gitlabRunner = inCache(`gitlab-runner-${gitlabRunnerVersion}`);

/** Why it is not there, as a sentence's end; null when it is. */
export function lacksGitlabRunner(): string | null {
  if (existsSync(gitlabRunner)) return null;
  const how = hasGo() ? 'run "npx node test/support/gitlab-programs.ts" once' : '"go" is not installed to build it';
  return `nothing at ${gitlabRunner}; ${how}`;
}

/** Folders and files of its source that need what is missing. */
const left = [
  ...['functions', 'steps', 'commands/fleeting', 'commands/wrapper.go', 'commands/helpers/proxy_exec.go', 'magefiles'],
  ...['executors/docker/autoscaler', 'executors/docker/machine', 'executors/instance', 'executors/internal/autoscaler'],
  ...['executors/kubernetes', 'helpers/runner_wrapper', 'helpers/usage_log/snowplow'],
];

/** Lines that name what was left out, by file. */
const dropped: Readonly<Record<string, RegExp>> = {
  'main.go':
    /commands\/(fleeting|steps)"|docker\/(autoscaler|machine)"|executors\/(instance|kubernetes)"|New(RunnerWrapper|ProxyExec)Command|(fleeting|steps)\.NewCommand|"(instance|docker-autoscaler|docker\+machine)": *|common\.ExecutorKubernetes:/,
  'apps/gitlab-runner-helper/main.go': /NewProxyExecCommand|steps\.NewCommand/,
  'commands/multi.go': /labkit\/v2|usage_log\/snowplow"|"snowplow_billing":/,
};

const unserved = [
  ...['gitlab-org/gitlab-runner/helpers/runner_wrapper/api', 'gitlab-org/moa', 'ajwalker/phrasestream'],
  ...['fleeting/fleeting', 'fleeting/fleeting-artifact', 'fleeting/fleeting/metrics/prometheus', 'fleeting/nesting'].map(inOrg),
  ...['fleeting/taskscaler', 'fleeting/taskscaler/metrics/prometheus'].map(inOrg),
];

function inOrg(name: string): string {
  return `gitlab-org/${name}`;
}

/** Builds it if it is missing: about 3 minutes of CPU time. @throws Error with what Go said */
export const buildGitlabRunner = (): Promise<string> =>
  madeOnce(gitlabRunner, async (half) => {
    const source = `${half}.source`;
    try {
      await cp(await moduleFolder(`gitlab.com/gitlab-org/gitlab-runner@${revision}`), source, { recursive: true, mode: 0 });
      await reduce(source);
      const flags = `-s -w -X gitlab.com/gitlab-org/gitlab-runner/common.VERSION=${gitlabRunnerVersion}`;
      const env = { GOFLAGS: '-mod=mod -buildvcs=false' };
      await go(['build', '-trimpath', '-ldflags', flags, '-o', half, '.'], source, env);
    } finally {
      await rm(source, { recursive: true, force: true });
    }
  });

async function reduce(source: string): Promise<void> {
  const recovery = await readFile(join(source, 'commands/steps/recovery.go'));
  for (const name of [...left, 'commands/steps']) await rm(join(source, name), { recursive: true, force: true });
  await mkdir(join(source, 'commands/steps'));
  await writeFile(join(source, 'commands/steps/recovery.go'), recovery);
  for await (const name of glob('**/*_test.go', { cwd: source })) await rm(join(source, name));
  await cp(join(import.meta.dirname, 'gitlab-go'), source, { recursive: true });
  for (const [name, lines] of Object.entries(dropped)) {
    const kept = (await readFile(join(source, name), 'utf8')).split('\n').filter((line) => !lines.test(line));
    await writeFile(join(source, name), withoutBilling(kept.join('\n')));
  }
  const stubs = { 'step-runner': './stub/step-runner', 'labkit/v2': './stub/labkit' };
  const replaced = Object.entries(stubs).flatMap(([name, path]) => ['-replace', `gitlab.com/gitlab-org/${name}=${path}`]);
  const wrapper = ['-dropreplace', 'gitlab.com/gitlab-org/gitlab-runner/helpers/runner_wrapper/api'];
  const drops = unserved.map((name) => `-droprequire=gitlab.com/${name}`);
  await go(['mod', 'edit', ...replaced, ...wrapper, ...drops], source);
}

/** Without the one function that needs the billing client. */
function withoutBilling(text: string): string {
  const at = text.indexOf('func (mr *RunCommand) createSnowplowBillingWriter');
  if (at === -1) return text;
  return text.slice(0, text.lastIndexOf('\n}\n', at) + 3) + text.slice(text.indexOf('\n}\n', at) + 3);
}

if (import.meta.main) {
  const from = Date.now();
  if (lacksGitlabRunner() !== null && !hasGo()) console.log(`Tests with gitlab-runner are skipped: ${lacksGitlabRunner()}.`);
  else console.log(`${await buildGitlabRunner()} (${Math.round((Date.now() - from) / 1000)} s)`);
}
