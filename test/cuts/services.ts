/** CI services that give jobs to a host from this machine, where no cut takes what they know: a real Gitea, and Buildkite's stand-in. */
import { setTimeout as sleep } from 'node:timers/promises';
import { wireAddress } from '../hosts/wire.ts';
import { type BuildkiteStandin, startBuildkite } from '../standins/buildkite/standin.ts';
import { lacksAgent, realAgent } from '../support/buildkite-agent.ts';
import { startGitea } from '../support/gitea.ts';
import { giteaPrograms, lacksGitea } from '../support/gitea-programs.ts';
import type { Seen } from './judge.ts';

/** A service, or one way to use it, and its pool. */
export interface Service extends AsyncDisposable {
  readonly pool: string;
  /** As in the table of results. */
  readonly name: string;
  readonly agents: number;
  /** Ports of this machine that the host must reach. */
  readonly ports: readonly number[];
  /** Files for the host's `/mnt`: paths by name. */
  readonly files: Readonly<Record<string, string>>;
  /** Secrets, by the name of their file below `/etc/onejob`. */
  readonly secrets: Readonly<Record<string, string>>;
  /** A line of `services:`, and one of `pools:`. */
  readonly config: { readonly service: string; readonly pool: string };
  /** Gives jobs with that prefix until it is told to end. */
  feed(prefix: string): () => Promise<void>;
  /** Its jobs, once all have an end, or after a while. */
  seen(): Promise<Seen[]>;
  /** Agents that it knows. */
  agentsThere(): Promise<readonly string[]>;
}

/** What a script does, as `inside/load.ts` has it. */
const script = (token: string, seconds: number): string =>
  `echo start ${token} >>/evidence/log; sync /evidence/log; sleep ${seconds}; echo end ${token} >>/evidence/log; sync /evidence/log`;

const box = 'image: "debian:stable-slim", network: default, volumes: ["/mnt/evidence:/evidence:rw"]';
/** Jobs that a service has open at a time. */
const queue = 2;
/** ms that a service may take to learn that an agent is gone. */
const patience = 150_000;

/** Asks `give` for a job again and again while fewer than `queue` are open. */
function feeding(open: () => Promise<number>, give: (n: number) => Promise<void>): () => Promise<void> {
  let isOn = true;
  const ended = (async () => {
    for (let n = 0; isOn; )
      if ((await open()) < queue) await give(n++);
      else await sleep(300);
  })();
  // A service that is gone, because this run ends, ends it no second time.
  ended.catch(() => {});
  return async () => {
    isOn = false;
    await ended;
  };
}

async function settled<T>(look: () => Promise<readonly T[]>, isOver: (one: T) => boolean): Promise<readonly T[]> {
  for (const until = Date.now() + patience; ; await sleep(500)) {
    const found = await look();
    if (found.every(isOver) || Date.now() > until) return found;
  }
}

async function buildkite(): Promise<Service> {
  // A cut takes an agent without a word.
  const standin: BuildkiteStandin = await startBuildkite({ publicHost: wireAddress, lostMs: 30_000 });
  const tokens = new Map<string, string>();
  const pool = 'buildkite';
  const isOver = ({ state }: { readonly state: string }): boolean => state === 'finished' || state === 'canceled';
  return {
    pool,
    name: 'Buildkite (stand-in)',
    agents: 2,
    ports: [standin.port, Number(new URL(standin.artifactHost).port)],
    files: { 'buildkite-agent': realAgent() ?? '' },
    secrets: { 'buildkite.token': `${standin.token}\n` },
    config: {
      service: `bk: { type: buildkite, endpoint: "${standin.endpoint}", token: { file: /etc/onejob/buildkite.token }, poll: 2s, agent: { from: /mnt/buildkite-agent } }`,
      pool: `${pool}: { service: bk, queue: default, agents: 2, ${box} }`,
    },
    feed: (prefix) =>
      feeding(
        async () => standin.jobs().filter((job) => !isOver(job)).length,
        async (n) => {
          const token = `${prefix}-${pool}-${n}`;
          tokens.set(standin.queueJob({ command: `${script(token, n % 4)}; exit ${n % 3}`, chunksIntervalS: 1 }), token);
        },
      ),
    async seen() {
      const jobs = await settled(async () => standin.jobs(), isOver);
      return jobs.map((job): Seen => {
        const token = tokens.get(job.id) ?? '';
        const expected = Number(token.split('-').at(-1)) % 3;
        const end = !isOver(job)
          ? 'open'
          : job.state === 'canceled'
            ? 'canceled'
            : job.exit === -1
              ? 'lost'
              : (job.exit ?? 'no code');
        return { token, pool, end, expected };
      });
    },
    agentsThere: async () => standin.census().agents,
    [Symbol.asyncDispose]: () => standin[Symbol.asyncDispose](),
  };
}

type Gitea = Awaited<ReturnType<typeof startGitea>>;

const workflow = `on:
  workflow_dispatch:
    inputs: { token: { type: string }, seconds: { type: string } }
jobs:
  j:
    runs-on: host
    steps:
      - run: ${script('$' + '{{ inputs.token }}', 0).replace('sleep 0', 'sleep $' + '{{ inputs.seconds }}')}
`;

/** Two services at one Gitea, because both ways to take a job keep other things. */
async function giteas(): Promise<Service[]> {
  // A job whose agent a cut took ends soon, and not after ten minutes.
  const more = 'ZOMBIE_TASK_TIMEOUT = 40s\n[cron.stop_zombie_tasks]\nENABLED = true\nSCHEDULE = @every 10s';
  const gitea = await startGitea({ address: '127.0.0.1', called: wireAddress, more });
  const ways = ['early', 'late'] as const;
  for (const way of ways) await gitea.repository(`acme/${way}`, { '.gitea/workflows/j.yml': workflow });
  const token = await gitea.tokenFor('write:repository');
  const common = `type: gitea, url: "http://${wireAddress}:${gitea.port}", token: { file: /etc/onejob/gitea.token }, poll: 1s, agent: { from: /mnt/gitea-runner }`;
  return ways.map((way, at) => giteaService(gitea, way, `gitea-${way}: { ${common}, binding: ${way} }`, token, at === 0));
}

function giteaService(gitea: Gitea, way: string, service: string, token: string, isOwner: boolean): Service {
  const [pool, scope] = [`gitea-${way}`, `/repos/acme/${way}`];
  const given: string[] = [];
  const isOver = ({ status }: { readonly status: string }): boolean => status === 'completed';
  return {
    pool,
    name: `Gitea, ${way}`,
    agents: 1,
    ports: isOwner ? [gitea.port] : [],
    files: { 'gitea-runner': giteaPrograms.runner },
    secrets: { 'gitea.token': `${token}\n` },
    config: { service, pool: `${pool}: { service: ${pool}, queue: acme/${way}, tags: host, agents: 1, ${box} }` },
    feed: (prefix) =>
      feeding(
        async () => (await gitea.jobs(scope)).filter((job) => !isOver(job)).length,
        async (n) => {
          given.push(`${prefix}-${pool}-${n}`);
          await gitea.dispatch(`acme/${way}`, 'j.yml', { token: given.at(-1) ?? '', seconds: `${n % 4}` });
        },
      ),
    async seen() {
      const jobs = await settled(() => gitea.jobs(scope), isOver);
      // In the order in which they were dispatched. Gitea tells no code; a job of a lost agent is a failure.
      return jobs.map((job, at): Seen => {
        const ends: Readonly<Record<string, Seen['end']>> = { success: 0, failure: 'lost' };
        const ended = job.conclusion ?? 'no conclusion';
        return { token: given[at] ?? '', pool, expected: 0, end: isOver(job) ? (ends[ended] ?? ended) : 'open' };
      });
    },
    agentsThere: async () => (await gitea.runners(scope)).map(({ name }) => name),
    [Symbol.asyncDispose]: async () => (isOwner ? gitea[Symbol.asyncDispose]() : undefined),
  };
}

/** Those that can be had here; `say` is told why another cannot. */
export async function startServices(names: readonly string[], say: (text: string) => void): Promise<Service[]> {
  const all = {
    buildkite: { lacks: lacksAgent, start: async () => [await buildkite()] },
    gitea: { lacks: lacksGitea, start: giteas },
  };
  const found: Service[] = [];
  for (const [name, { lacks, start }] of Object.entries(all)) {
    if (!names.includes(name)) continue;
    const why = lacks();
    if (why === null) found.push(...(await start()));
    else say(`Without ${name}: ${why}.`);
  }
  return found;
}
