/** What a person types at the stand-in, and what it tells them. */
import { obeyLine } from '../kit/console.ts';
import { NAMED_FAULTS } from './faults.ts';
import type { BuildkiteStandin, JobSpec, StandinEvent } from './types.ts';

export const HELP = `queue [--queue Q] [--rule TAG] [--pipeline P] [--branch B] [--priority N] [--fork] [--waiting] [--env NAME=VALUE] [-- COMMAND]
                              queue a job; --fork makes it a pull request from another repository; --env may be repeated
jobs                          its jobs
log JOB                       what a job wrote so far; the first characters of its id are enough
cancel JOB                    cancel a job
agents                        agents: state, job, queue, priority, version, address, tags
stop|pause|resume|lose AGENT  as a person on the web page would; "lose" as if its host were gone
secret NAME VALUE             a secret that jobs may ask for
fault                         names of faults
fault NAME [METHOD] [ROUTE] [TIMES]
                              from now on, e.g. "fault lost PUT jobs/:id/finish 1"; routes as in "requests"
fault clear                   all is well again
requests [N]                  the last requests to the service
revoke                        the token is no longer valid
down, up                      nobody answers any more; and again
help, quit`;

/** Does what a line says; the answer is for the person. `quit` is the caller's. */
export function obey(bk: BuildkiteStandin, line: string): Promise<string> {
  type Words = readonly string[];
  const commands = {
    queue: (_: Words, rest: string) => queue(bk, rest),
    jobs: () => jobs(bk),
    log: ([job]: Words) => withJob(bk, job, (id) => bk.job(id).log),
    cancel: ([job]: Words) =>
      withJob(bk, job, (id) => {
        bk.cancel(id);
        return `Job ${short(id)} is being cancelled.`;
      }),
    agents: () => agents(bk),
    stop: ([name]: Words) => agent(bk, 'stop', name),
    pause: ([name]: Words) => agent(bk, 'pause', name),
    resume: ([name]: Words) => agent(bk, 'resume', name),
    lose: ([name]: Words) => agent(bk, 'lose', name),
    secret: (words: Words) => secret(bk, words),
    requests: ([count = '20']: Words) => requests(bk, Number(count)),
    revoke() {
      bk.revoke(bk.token);
      return 'The token is revoked. Agents that are connected stay.';
    },
  };
  return obeyLine({ help: HELP, address: bk.endpoint, faults: bk.faults, named: NAMED_FAULTS, commands }, line);
}

export const short = (id: string): string => id.slice(0, 8);

function queue(bk: BuildkiteStandin, rest: string): string {
  const [, said = '', command] = /^(.*?)(?:(?:^|\s)--(?:\s+(.*)|$))?$/s.exec(rest) ?? [];
  const spec: { -readonly [K in keyof JobSpec]: JobSpec[K] } = command === undefined ? {} : { command };
  const words = said.split(/\s+/).filter((word) => word !== '');
  const rules: string[] = [];
  const env: Record<string, string> = {};
  while (words.length > 0) {
    const flag = words.shift() ?? '';
    if (flag === '--fork') {
      spec.pullRequest = 1;
      spec.pullRequestRepo = 'https://git.example.org/somebody-else/fork.git';
      continue;
    }
    if (flag === '--waiting') {
      spec.waiting = true;
      continue;
    }
    const value = words.shift();
    if (value === undefined) return `"${flag}" needs a value, or there is no such thing. Type "help".`;
    if (flag === '--queue') spec.queue = value;
    else if (flag === '--pipeline') spec.pipeline = value;
    else if (flag === '--branch') spec.branch = value;
    else if (flag === '--rule') rules.push(value);
    else if (flag === '--env' && /^[A-Za-z_]\w*=/.test(value))
      env[value.slice(0, value.indexOf('='))] = value.slice(value.indexOf('=') + 1);
    else if (flag === '--priority' && /^-?\d+$/.test(value)) spec.priority = Number(value);
    else return `"${flag} ${value}" is not understood. Type "help".`;
  }
  // The agents are told to check nothing out, each in its own settings: said by a job, too, its log would hold a warning.
  const id = bk.queueJob({ ...spec, rules, env, checkout: true });
  return `Job ${short(id)} is queued.`;
}

function jobs(bk: BuildkiteStandin): string {
  const lines = bk.jobs().map(({ id, state, exit, agent, queue: name, pipeline, branch, command }) => {
    const end = exit === null ? state : `${state} (${exit})`;
    const [first = ''] = command.split('\n');
    return `${short(id)}  ${end}  ${agent?.name ?? '—'}  ${name}  ${pipeline}/${branch}  ${first.slice(0, 60)}`;
  });
  return lines.length === 0 ? 'No job has been queued. Try: queue -- echo hello' : lines.join('\n');
}

function agents(bk: BuildkiteStandin): string {
  const lines = bk.agents().map(({ name, state, job, paused, queue: of, priority, tags, version, from }) => {
    const does = paused ? `${state}, paused` : state;
    const rest = tags.filter((tag) => tag !== `queue=${of}`).join(',');
    const shown = [name, does, job === null ? '—' : short(job), of, `priority ${priority ?? 0}`, version, from];
    return [...shown, ...(rest === '' ? [] : [rest])].join('  ');
  });
  return lines.length === 0 ? 'No agent has registered.' : lines.join('\n');
}

function withJob(bk: BuildkiteStandin, prefix: string | undefined, act: (id: string) => string): string {
  const found = prefix === undefined ? [] : bk.jobs().filter(({ id }) => id.startsWith(prefix));
  const [job] = found;
  if (job === undefined || found.length > 1) return 'Which job? See "jobs".';
  return act(job.id);
}

function agent(bk: BuildkiteStandin, verb: 'stop' | 'pause' | 'resume' | 'lose', name: string | undefined): string {
  if (name === undefined || !bk.agents().some((each) => each.name === name)) return 'Which agent? See "agents".';
  bk[`${verb}Agent`](name);
  return verb === 'lose' ? `${name} is lost.` : `${name} is told with its next ping.`;
}

function secret(bk: BuildkiteStandin, [name, ...value]: readonly string[]): string {
  if (name === undefined || value.length === 0) return 'For example: secret API_KEY swordfish';
  bk.addSecret(name, value.join(' '));
  return `Jobs may ask for ${name}.`;
}

function requests(bk: BuildkiteStandin, count: number): string {
  return bk.requests
    .slice(-count)
    .map(({ status, token, method, route, agent: who, from }) =>
      [status === 0 ? '—  ' : status, token.padEnd(12), method.padEnd(6), route, who ?? '', from].join(' '),
    )
    .join('\n');
}

/** One line for what a person wants to see happen; null for the rest. */
export function told(event: StandinEvent): string | null {
  switch (event.kind) {
    case 'agentRegistered':
      return `agent ${event.agent.name} has registered from ${event.agent.from}`;
    case 'agentConnected':
      return `agent ${event.agent.name} is connected`;
    case 'agentDisconnected':
      return `agent ${event.agent.name} has left`;
    case 'agentLost':
      return `agent ${event.agent.name} is lost`;
    case 'jobAccepted':
      return `job ${short(event.job.id)} is with ${event.job.agent?.name}`;
    case 'jobReturned':
      return `job ${short(event.job.id)} waits again`;
    case 'jobEnded': {
      const { id, state, exit, signalReason } = event.job;
      return `job ${short(id)} ${state}: ${exit}${signalReason === '' ? '' : ` (${signalReason})`}`;
    }
    case 'log':
      return event.text
        .replace(/\n$/, '')
        .split('\n')
        .map((line) => `  ${short(event.job)} | ${line}`)
        .join('\n');
    default:
      return null;
  }
}
