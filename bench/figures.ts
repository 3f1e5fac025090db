/** Every figure that is promised, how to measure it, and what to reach. Order: quick ones first. */

import { machineSocket } from '../test/support/engine-http.ts';
import { defaultImage } from '../test/support/require.ts';
import { azureGap, azurePolls } from './azure.ts';
import { buildkiteIdle, buildkiteRun } from './buildkite.ts';
import { cloudDecision, cloudIdle, cloudMemory } from './cloud.ts';
import { containersFigures } from './containers.ts';
import { coreFigure } from './core.ts';
import { coldRun, gap, growth, idle, submitToFirstByte, throughput } from './daemon.ts';
import { dashboardFigure } from './dashboard.ts';
import { engine29 } from './engine-29.ts';
import { floor } from './floor.ts';
import { giteaGaps } from './gitea.ts';
import { gitlabGaps } from './gitlab.ts';
import { parsing, proving } from './gpus.ts';
import { historyFigures } from './history.ts';
import { kubernetesFigures } from './kubernetes.ts';
import { kubernetesMany } from './kubernetes-many.ts';
import { logFigures } from './logs.ts';
import { metricsFigure } from './metrics.ts';
import { statusWall, submitMany } from './people.ts';
import { slurmFigures } from './slurm.ts';
import { type Share, slurmMany } from './slurm-many.ts';
import { inTurn, ratioText, type Stats, stats } from './stats.ts';
import { releasePairs } from './syncs.ts';
import { sendingFigures } from './workspace.ts';

export interface Line {
  readonly figure: string;
  readonly measured: string;
  readonly reach: string;
  /** null: nothing was promised. */
  readonly reached: boolean | null;
}

export interface Outcome {
  readonly lines: readonly Line[];
  /** Everything that was measured, for the JSON file. */
  readonly data: unknown;
}

export interface BenchOptions {
  /** Fewer rounds: to see that it works, not to be believed. */
  readonly quick: boolean;
  /** A folder for sockets, removed afterwards. */
  readonly dir: string;
}

export const figures: Readonly<Record<string, (options: BenchOptions) => Promise<Outcome>>> = {
  core: async () => {
    const data = [1, 100, 1_000, 10_000].map((slots) => coreFigure(slots));
    const of = (slots: number): number => data.find((one) => one.slots === slots)?.perEvent.p50 ?? Number.NaN;
    const figure = 'decide + plan, 1,000 slots, one event';
    return {
      data,
      lines: [
        line(figure, of(1_000), 50, 'µs p50'),
        info('the same with 1 slot; with 10,000', `${of(1)} µs; ${of(10_000)} µs p50`),
      ],
    };
  },

  gpus: async ({ quick }) => {
    const read = parsing(quick ? 5 : 200);
    const proof = await proving(quick ? 10 : 1_000);
    return {
      data: { read, proof },
      lines: [
        line(`reading the largest recording (${read.kilobytes} kB of nvidia-smi -q -x)`, read.times.p50, 20, 'ms p50'),
        line('release and proof of a device, without the tool: one of 8 cards', proof.p50, 5, 'ms p50'),
        info('the same', `${proof.p95} ms p95`),
      ],
    };
  },

  metrics: async ({ quick }) => {
    const data = await metricsFigure(1_000, quick ? 20 : 500);
    return {
      data,
      lines: [
        line(
          `a scrape of /metrics, 1,000 slots in 20 pools (${data.lines.toLocaleString('en')} lines)`,
          data.scrape.p50,
          20,
          'ms p50',
        ),
        info('the same; of that, reading the state', `${data.scrape.p95} ms p95; ${data.reading.p50} ms p50`),
      ],
    };
  },

  history: async ({ quick, dir }) => {
    const data = historyFigures(dir, quick ? 20_000 : 1_000_000, quick ? 10 : 200);
    const figure = (name: string) => `history of ${data.jobs.toLocaleString('en')} jobs: ${name}`;
    return {
      data,
      lines: Object.entries(data.queries).map(([name, of]) => line(figure(name), of.p95, 100, 'ms p95')),
    };
  },

  dashboard: async ({ quick }) => {
    const data = await dashboardFigure(quick ? 20 : 400);
    return {
      data,
      lines: [
        line('a submitted job is in the dashboard (Chromium), 200 jobs a minute', data.shown.p95, 100, 'ms p95'),
        info('the same', `${data.shown.p50} ms p50`),
        line('the daemon with ten dashboard clients meanwhile', data.residentMB, 150, 'MB RSS'),
      ],
    };
  },

  status: async ({ quick }) => {
    const { status, floor: start } = await statusWall(quick ? 5 : 60);
    return {
      data: { status, start },
      lines: [
        line('`onejob status`, 16 slots', status.p50, 150, 'ms p50 wall'),
        info('of that, what `onejob version` takes as well', `${start.p50} ms p50 wall`),
      ],
    };
  },

  array: async ({ quick }) => {
    const data = await submitMany(500, quick ? 2 : 10);
    return { data, lines: [line('500 jobs submitted by one command', data.max / 1000, 5, 's, the slowest')] };
  },

  run: async ({ quick }) => {
    const data = await coldRun(quick ? 3 : 20);
    return { data, lines: [line('`onejob run -- true` without a daemon, process runtime', data.p50, 700, 'ms p50 wall')] };
  },

  /** `ONEJOB_BENCH_BEFORE`: as for `release`. */
  workspace: async ({ quick, dir }) => {
    const data = await sendingFigures(quick ? 1 : 5, quick ? 0.1 : 1, dir, process.env.ONEJOB_BENCH_BEFORE ?? null);
    const { seconds, toEnd, unchanged } = data;
    return {
      data,
      lines: [
        {
          figure: '`onejob run --detach` with an unchanged workspace of 20,000 files and 400 MB, of the same sent whole',
          measured: ratioText(unchanged),
          reach: '≤ 20 %',
          reached: unchanged.median <= 0.2,
        },
        info('the same with one changed file; sent for the first time', `${ratioText(data.oneFile)}; ${ratioText(data.first)}`),
        info(
          'sent whole; first; unchanged; one changed file',
          `${seconds.before}; ${seconds.first}; ${seconds.unchanged}; ${seconds.oneFile} s`,
        ),
        info('the floor: `tar` to a flushed file; `git status` of it', `${seconds.tar}; ${seconds.status} s`),
        info('until a job of `true` has ended, unpacking included: sent whole; unchanged', `${toEnd.before}; ${toEnd.unchanged} s`),
      ],
    };
  },

  submit: async ({ quick }) => {
    const data = await submitToFirstByte(quick ? 5 : 100);
    return {
      data,
      lines: [
        line('submit (connected) to first output byte, warm agent, no workspace', data.p50, 15, 'ms p50'),
        info('the same', `${data.p95} ms p95`),
      ],
    };
  },

  gap: async ({ quick, dir }) => {
    const data = await gap(quick ? 5 : 60, dir);
    return {
      data,
      lines: [
        line('gap: last instruction of a job to first output byte of the next queued one', data.whole.p50, 40, 'ms p50'),
        info('of it the Engine: until the die event is here', `${data.engine.p50} ms p50, ${data.engine.p95} ms p95`),
        line('of it ours: die event received to frame written', data.ours.p50, 5, 'ms p50'),
        line('the same', data.ours.p95, 20, 'ms p95'),
        info('of it the way back: frame written to first byte at the client', `${data.back.p50} ms p50, ${data.back.p95} ms p95`),
      ],
    };
  },

  /** `ONEJOB_BENCH_BEFORE`: path of `bin/onejob` in another clone, to measure in pairs with it. */
  release: async ({ quick }) => {
    const data = await releasePairs(quick ? 5 : 60, process.env.ONEJOB_BENCH_BEFORE ?? null);
    const { here, before, sync } = data;
    const inWords = ({ p50, p95 }: Stats): string => `${p50} ms p50, ${p95} ms p95`;
    return {
      data,
      lines: [
        info(
          'release to first byte: last instruction of a job to first byte of the next that waits, process runtime',
          inWords(here.gap),
        ),
        info('the same for a job that is accepted while a slot waits: submission to first byte', inWords(here.accepted)),
        info('one fdatasync of 4 KiB on this disk', inWords(sync)),
        ...(before === null
          ? []
          : [
              info('the other onejob, in pairs: last instruction to first byte', inWords(before.gap)),
              info('the other onejob, in pairs: submission to first byte', inWords(before.accepted)),
            ]),
      ],
    };
  },

  azure: async ({ quick, dir }) => {
    const data = await azureGap(quick ? 3 : 30, dir);
    const few = await azurePolls(1, quick ? 20 : 60);
    const many = await azurePolls(8, quick ? 20 : 60);
    return {
      data: { ...data, requests: { few, many } },
      lines: [
        info(
          'Azure Pipelines (stand-in): an agent has left until the next one is online',
          `${data.whole.p50} ms p50, ${data.whole.p95} ms p95`,
        ),
        info('of it the end of the agent and the Engine: until the die event is here', `${data.engine.p50} ms p50`),
        line('of it ours: die event received to frame written', data.ours.p50, 50, 'ms p50'),
        info('of it calls of the manager to the service', `${data.calls.p50} p50`),
        info('of it the start of the scripted agent and its sign-in', `${data.start.p50} ms p50`),
        info('requests of the manager for each job, polls left out', `${data.perJob}`),
        {
          figure: 'requests of the manager an idle hour, polling every 10 s: with 1 agent; with 8',
          measured: `${Math.round(few * 60)}; ${Math.round(many * 60)}`,
          reach: 'the same',
          reached: Math.abs(few - many) <= 2,
        },
      ],
    };
  },

  buildkite: async ({ quick, dir }) => {
    const { start, perJob, routes } = await buildkiteRun(quick ? 3 : 30, dir);
    return {
      data: { start, perJob, routes },
      lines: [
        line(
          "Buildkite (stand-in, real agent): job scheduled to its command's first output, poll included",
          start.whole.p50,
          1_200,
          'ms p50',
        ),
        info('of it until a list has the job', `${start.found.p50} ms p50`),
        line('of it ours: from that list to the frame written, with four calls to the service', start.ours.p50, 20, 'ms p50'),
        info("the gate: frame written to the agent's first instruction", `${start.gate.p50} ms p50`),
        info("the agent's start to the first output; by hand", `${start.agent.p50}; ${start.floor.p50} ms p50`),
        info('requests at the service for each job, heartbeats and lists left out', `${perJob}`),
      ],
    };
  },

  gitea: async ({ quick, dir }) => {
    const data = await giteaGaps(quick ? 3 : 20, dir);
    return {
      data,
      lines: [
        line('Gitea, real server and runner: end of a job to the first line of the next, one slot', data.ours.p50, 250, 'ms p50'),
        info('the same with the docker mode of its own runner, ephemeral', `${data.docker.p50} ms p50`),
        info('the floor: the same runner on the host, without a sandbox', `${data.floor.p50} ms p50`),
      ],
    };
  },

  gitlab: async ({ quick, dir }) => {
    const data = await gitlabGaps(quick ? 3 : 20, dir);
    return {
      data,
      lines: [
        line('GitLab, real runner: end of a job to the first line of the next, one slot', data.ours.p50, 250, 'ms p50'),
        info('the same with the docker executor of the same runner', `${data.docker.p50} ms p50`),
        info('the floor: its shell executor on the host, which continues with the same process', `${data.floor.p50} ms p50`),
      ],
    };
  },

  slurm: async ({ quick }) => {
    const data = await slurmFigures(quick ? 3 : 60);
    return {
      data,
      lines: [
        line(
          'Slurm: submit to first byte, more than sbatch itself',
          data.more.mean,
          150,
          `ms (mean of pairs, ±${data.more.error})`,
        ),
        info('sbatch to first byte; the same by onejob', `${data.floor.p50} ms; ${data.ours.p50} ms p50`),
        line('Slurm, an agent waits: submit to first byte', data.waiting.p50, 100, 'ms p50'),
      ],
    };
  },

  kubernetes: async ({ quick }) => {
    const data = await kubernetesFigures(quick ? 3 : 20);
    return {
      data,
      lines: [
        line('Kubernetes, an agent waits: submit to first byte', data.waiting.p50, 40, 'ms p50'),
        line(
          'Kubernetes: end of a job to the first line of the next on the same GPU, more than bare pods',
          Math.round(data.gap.p50 - data.floor.p50),
          100,
          'ms p50',
        ),
        info('of bare pods; of onejob', `${data.floor.p50}; ${data.gap.p50} ms p50`),
      ],
    };
  },

  slurmMany: async ({ quick }) => {
    const many = quick
      ? { nodes: 20, jobs: 500, agents: 50, seconds: 20 }
      : { nodes: 1_000, jobs: 4_500, agents: 500, seconds: 60 };
    const data = await slurmMany(many);
    const where = `${many.nodes.toLocaleString('en')} nodes and ${many.jobs.toLocaleString('en')} waiting jobs`;
    const shareLine = (what: string, { both }: Share): Line => line(`Slurm with ${where} ${what}`, both, 2, '% of one core');
    const split = ({ daemon, commands }: Share): string => `${daemon} + ${commands} %`;
    return {
      data,
      lines: [
        shareLine('of others, 16 agents at their gates', data.beside),
        shareLine('of the same user, 16 agents at their gates', data.own),
        shareLine(`of the same user, ${many.agents} agents in the queue, too`, data.pending),
        info('of it the daemon and its commands', [data.beside, data.own, data.pending].map(split).join('; ')),
        info('one squeue: jobs of others; of the same user', `${data.squeue.others}; ${data.squeue.own} ms`),
      ],
    };
  },

  kubernetesMany: async ({ quick }) => {
    const many = quick ? { nodes: 20, agents: 100, seconds: 10 } : { nodes: 1_000, agents: 5_000, seconds: 60 };
    const data = await kubernetesMany(many);
    const { cpu, memory, took, idle } = data;
    const where = `Kubernetes, ${many.agents.toLocaleString('en')} agents on ${many.nodes.toLocaleString('en')} pretended nodes`;
    return {
      data,
      lines: [
        line(`${where}: the daemon until all are at their gates`, cpu.made, 5, 's of CPU'),
        line(`${where}: its memory, at most`, memory.most, 200, 'MB RSS'),
        info('with none; of it with all at their gates', `${memory.before} MB RSS; ${idle} % of one core`),
        info('until all are removed', `${cpu.removed} s of CPU`),
        info('all at their gates; all removed, after', `${took.made}; ${took.removed} s`),
      ],
    };
  },

  buildkiteIdle: async ({ quick, dir }) => {
    const few = await buildkiteIdle(1, quick ? 20 : 120, dir);
    const many = await buildkiteIdle(8, quick ? 20 : 120, dir);
    return {
      data: { few, many },
      lines: [
        info(
          'requests at the service an hour while slots are free: with 1; with 8',
          `${Math.round(few * 60)}; ${Math.round(many * 60)}`,
        ),
      ],
    };
  },

  throughput: async ({ quick }) => {
    const [pairs, cycles] = quick ? [2, 12] : [8, 48];
    const common = { socket: machineSocket, image: defaultImage } as const;
    const raw = async (kind: 'plain' | 'alike') => (await floor({ ...common, cycles, concurrency: 4, kind })).cyclesPerSecond;
    await using daemon = await throughput();
    const ours = () => daemon.measure(cycles);
    const plain = await inTurn(pairs, () => raw('plain'), ours);
    const alike = await inTurn(Math.ceil(pairs / 2), () => raw('alike'), ours);
    const one = await floor({ ...common, cycles, concurrency: 1, kind: 'plain' });
    const figure = stats(plain.measured.map(([, each]) => each));
    return {
      data: { plain, alike, one },
      lines: [
        {
          figure: `jobs of \`true\`, ${cycles} at a time on 4 slots, against the raw loop at concurrency 4, in turn`,
          measured: `${ratioText(plain)}; ${figure.p50} jobs/s p50`,
          reach: '≥ 85 %',
          reached: plain.median >= 0.85,
        },
        info('against the raw loop with the init, log driver and network that our sandboxes have, in turn', ratioText(alike)),
        info(
          'the raw loop, one at a time',
          `${one.cyclesPerSecond} cycles/s; create ${one.create.p50}, start ${one.start.p50}, remove ${one.remove.p50} ms p50`,
        ),
      ],
    };
  },

  engine29: async ({ quick, dir }) => {
    const data = await engine29(quick ? { jobs: 5, pairs: 2, cycles: 8 } : { jobs: 60, pairs: 8, cycles: 48 }, dir);
    const beside = (of: (side: 'today' | 'machine') => string): string => `${of('today')}; ${of('machine')}`;
    const name = `Docker Engine ${data.version}; the machine's, in the same run`;
    return {
      data,
      lines: [
        info(
          `${name}: gap to the next job`,
          beside((side) => `${data.gap[side].whole.p50} ms`),
        ),
        info(
          'of it the Engine: until the die event is here',
          beside((side) => `${data.gap[side].engine.p50} ms p50`),
        ),
        info(
          'of it ours: die event received to frame written',
          beside((side) => `${data.gap[side].ours.p50} ms p50`),
        ),
        info(
          'submit (connected) to first output byte',
          beside((side) => `${data.submit[side].p50} ms p50`),
        ),
        info(
          'jobs of `true` against the raw loop on the same Engine, in turn',
          beside((side) => ratioText(data.throughput[side])),
        ),
      ],
    };
  },

  containers: async ({ quick }) => {
    const rounds = quick ? { rounds: 2, agents: 2, gigabytes: 0.05 } : { rounds: 10, agents: 20, gigabytes: 5 };
    const data = await containersFigures(rounds);
    const { agent, first, gap, memory, ready, release, run, start } = data;
    const both = (of: { readonly with: Stats; readonly without: Stats }): string => `${of.with.p50}; ${of.without.p50} ms p50`;
    const more = Math.round((memory.with - memory.without) * 10) / 10;
    const times = Math.round((agent.with.p50 / start.p50) * 100) / 100;
    return {
      data,
      lines: [
        line('an agent with an engine of its own, until it waits', times, 2, '× `docker run -d` of the Engine, p50'),
        info('of it; without an engine; `docker run -d`', `${agent.with.p50}; ${agent.without.p50}; ${start.p50} ms p50`),
        line(`memory of a waiting agent more than without an engine, of ${rounds.agents}`, more, 45, 'MB'),
        info('submit (connected) to first output byte, with an engine; without', both(release)),
        info('gap: last instruction of a job to first output byte of the next, with an engine; without', both(gap)),
        info('the first `docker` of a job, which starts its engine', `${first.p50} ms p50`),
        line('`docker run --rm … true` in a job, of the same at the Engine, in turn', run.median, 1.1, '× (median of pairs)'),
        line(
          `an image of ${rounds.gigabytes} GB in the images of the pool: until the next agent waits, longer`,
          Math.round(ready.with.p50 - agent.with.p50),
          500,
          'ms p50',
        ),
      ],
    };
  },

  logs: async ({ quick }) => {
    const data = await logFigures({ lines: quick ? 50_000 : 1_000_000, pairs: quick ? 2 : 6, image: defaultImage });
    const times = (of: string) => `a container's log of short lines, read ${of}, against "docker logs -f"`;
    return {
      data,
      lines: [
        line(times("in the Engine's files"), data.files.median, 1.5, '× (median of pairs)'),
        line(times("through the Engine's API"), data.api.median, 1.5, '× (median of pairs)'),
        info('memory while reading', `${Math.round(data.grown / 2 ** 20)} MiB more at most`),
      ],
    };
  },

  idle: async ({ quick }) => {
    const data = await idle(quick ? 10 : 60);
    return {
      data,
      lines: [
        line("the daemon's memory, 16 idle slots", data.rss, 140, 'MB RSS'),
        line("the daemon's CPU, 16 idle slots", data.cpu, 0.5, '% of one core'),
      ],
    };
  },

  cloudDecision: async ({ quick }) => {
    const data = await cloudDecision(quick ? 3 : 30);
    const cloudLine = (name: string, { p50 }: Stats) =>
      line(`a job waits until the call that makes a machine is at ${name} (stand-in), cold`, p50, 1000, 'ms p50');
    return { data, lines: [cloudLine('AWS', data.aws), cloudLine('Google Cloud', data.gcp), cloudLine('Azure', data.azure)] };
  },

  cloudIdle: async ({ quick }) => {
    const data = await cloudIdle(quick ? 10 : 100);
    const cloudLine = (name: string, { one, many }: { readonly one: number; readonly many: number }): Line => ({
      figure: `requests to ${name} (stand-in) in an hour without jobs: with 1 machine; with ${quick ? 10 : 100}`,
      measured: `${one}; ${many}`,
      reach: 'the same',
      reached: one === many,
    });
    return { data, lines: [cloudLine('AWS', data.aws), cloudLine('Google Cloud', data.gcp), cloudLine('Azure', data.azure)] };
  },

  cloudMemory: async ({ quick }) => {
    const data = await cloudMemory(quick ? 20 : 90);
    return {
      data,
      lines: [
        line("the daemon's memory with a machine in each of the three clouds", data.with, 140, 'MB RSS'),
        info('the same without clouds', `${data.without} MB RSS`),
      ],
    };
  },

  growth: async ({ quick }) => {
    const jobs = quick ? 200 : 10_000;
    const data = await growth(jobs);
    return {
      data,
      lines: [line(`the daemon's growth over ${jobs.toLocaleString('en')} jobs, process runtime`, data, 10, 'MB RSS')],
    };
  },
};

function line(figure: string, value: number, reach: number, unit: string): Line {
  return { figure, measured: `${value} ${unit}`, reach: `≤ ${reach} ${unit}`, reached: value <= reach };
}

function info(figure: string, measured: string): Line {
  return { figure, measured, reach: '', reached: null };
}
