/** What tests see, made from what the stand-in knows. */
import type { Agent, Job } from './state.ts';
import type { AgentView, JobView } from './types.ts';

export function agentView(agent: Agent): AgentView {
  const { id, name, tags, queue, priority, version, hostname, features, from, token, registered, connected, gone } = agent;
  const here = connected === null ? 'registered' : agent.job === null ? 'idle' : 'busy';
  const state = gone === null ? here : agent.lost ? 'lost' : 'disconnected';
  return {
    id,
    name,
    state,
    paused: agent.paused !== null,
    ignored: agent.ignored,
    tags,
    queue,
    priority,
    version,
    hostname,
    features,
    from,
    token,
    job: agent.job?.id ?? null,
    registered,
    connected,
    gone,
  };
}

export function jobView(job: Job): JobView {
  const log = logOf(job);
  return {
    id: job.id,
    build: job.build.id,
    state: job.state,
    queue: job.queue,
    command: job.command,
    pipeline: job.pipeline,
    branch: job.branch,
    agent: job.agent === null ? null : { id: job.agent.id, name: job.agent.name },
    assignments: job.assignments,
    exit: job.exit,
    signal: job.signal,
    signalReason: job.signalReason,
    detail: job.detail,
    chunksFailed: job.chunksFailed,
    get log() {
      return readable(log().bytes.toString('utf8'));
    },
    get rawLog() {
      return log().bytes;
    },
    get logMissing() {
      return log().missing;
    },
    chunks: { received: job.received, repeated: job.repeated },
    headerTimes: Object.fromEntries(job.headerTimes),
    metaData: Object.fromEntries(job.build.metaData),
    annotations: [...job.annotations.values()].map((each) => ({ ...each })),
    artifacts: job.artifacts.map(({ id, path, size, sha1, state, received }) => ({ id, path, size, sha1, state, received })),
    notifications: [...job.notifications],
    env: job.env,
    times: { ...job.times },
  };
}

/** The log as it stands when the view is made; put together when it is read, for it may be long. */
function logOf(job: Job): () => { bytes: Buffer; missing: number } {
  const chunks = [...job.chunks];
  let made: { bytes: Buffer; missing: number } | undefined;
  return () => {
    made ??= together(chunks);
    return made;
  };
}

/** Chunks come in any order, more than once, and sometimes not at all: each is put where its offset says. */
function together(chunks: [number, Buffer][]): { bytes: Buffer; missing: number } {
  const length = chunks.reduce((most, [offset, { length }]) => Math.max(most, offset + length), 0);
  const bytes = Buffer.alloc(length, '?');
  let missing = 0;
  let end = 0;
  for (const [offset, data] of chunks.sort(([a], [b]) => a - b)) {
    missing += Math.max(0, offset - end);
    data.copy(bytes, offset);
    end = Math.max(end, offset + data.length);
  }
  return { bytes, missing };
}

/** Without the agent's time stamps (an ANSI application command per line) and with `\n` alone. */
export function readable(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: the agent marks lines with them
  return text.replace(/\x1b_bk;[^\x07]*\x07/g, '').replace(/\r+\n/g, '\n');
}
