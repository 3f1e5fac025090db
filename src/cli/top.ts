/** `onejob top`: devices, pools, running jobs and the queue on one screen, drawn again every second. */
import { hostname } from 'node:os';
import type { Client } from '../api/client.ts';
import { hasCode, OnejobError } from '../base/errors.ts';
import type { DeviceView, JobView, PoolView, StatusView } from '../contract/schema.ts';
import { sleep } from '../core/clock.ts';
import { systemClock } from '../system/system-clock.ts';
import { findDaemon } from './connect.ts';
import { exitCodes } from './exit.ts';
import { titleOf } from './job-title.ts';
import { agentsBusy } from './jobs.ts';
import { startText } from './run.ts';
import type { Session } from './session.ts';
import { type Colors, colored, cut, formatAge, hang, printable, terminalSize, titledTable } from './text.ts';

const redrawEvery = 1_000;

/** Alternate screen without a cursor, and back. */
const [enter, leave] = ['\u001b[?1049h\u001b[?25l', '\u001b[?25h\u001b[?1049l'];

export interface TopView {
  readonly status: StatusView;
  /** Empty if no pool has devices. */
  readonly devices: readonly DeviceView[];
  /** That have not ended. */
  readonly jobs: readonly JobView[];
}

/** Until `q` or Ctrl-C. Without a terminal it prints one picture. */
export async function showTop(session: Session): Promise<number> {
  const { output, context } = session;
  const { stdout } = context;
  const whose = session.remote === null ? {} : { host: session.remote.shown };
  if (output.width === null || output.json) {
    const view = await look(session);
    if (view === null) throw new OnejobError('E_DAEMON_ABSENT', 'No daemon is running.', { hint: 'Start it with "onejob up".' });
    await output.result(view, () =>
      topLines(view, { colors: output.colors, width: null, height: null, now: systemClock.wall(), ...whose }),
    );
    return exitCodes.ok;
  }
  const quit = new AbortController();
  const release = context.process.onSignal(() => quit.abort());
  const stdin = context.stdin() as NodeJS.ReadStream;
  const onKey = (key: Buffer): void => {
    // In raw mode Ctrl-C and Ctrl-D are bytes.
    if (['q', 'Q', '\u0003', '\u0004'].includes(key.toString())) quit.abort();
  };
  const isRaw = stdin.isTTY === true;
  if (isRaw) stdin.setRawMode(true);
  stdin.on('data', onKey).resume();
  await output.write('stdout', enter);
  let lostAt: number | null = null;
  try {
    while (!quit.signal.aborted) {
      const view = await look(session).catch((error: unknown) => {
        if (hasCode(error, 'E_DAEMON_CUT', 'E_DAEMON_STOPPING', 'E_DAEMON_SILENT', 'E_DAEMON_ABSENT')) return null;
        throw error;
      });
      const { columns: width, rows: height } = terminalSize(stdout);
      lostAt = view === null ? (lostAt ?? systemClock.wall()) : null;
      const away = `No daemon is running since ${new Date(lostAt ?? 0).toLocaleTimeString('en-GB')}; waiting for it. q quits.`;
      const lines =
        view === null ? [away] : topLines(view, { colors: output.colors, width, height, now: systemClock.wall(), ...whose });
      await output.write('stdout', `\u001b[H${lines.map((line) => `${line}\u001b[K`).join('\r\n')}\u001b[J`);
      // Rejects when it is to quit.
      await sleep(systemClock, redrawEvery, quit.signal);
    }
  } finally {
    release();
    stdin.off('data', onKey).pause();
    if (isRaw) stdin.setRawMode(false);
    await output.write('stdout', leave).catch(() => {});
  }
  return exitCodes.ok;
}

/** null while no daemon runs. */
async function look(session: Session): Promise<TopView | null> {
  const connection = await findDaemon(session);
  if (connection === null) return null;
  try {
    const { client } = connection;
    const [status, jobs, devices] = await Promise.all([
      client.status(),
      client.jobs({ all: false, pool: null }),
      devicesOf(client),
    ]);
    return { status, jobs, devices };
  } finally {
    connection.close();
  }
}

async function devicesOf(client: Client): Promise<DeviceView[]> {
  return client.devices().catch((error: unknown) => {
    // A daemon of an earlier version refuses, where no pool has devices.
    if (error instanceof OnejobError && !error.retry && !hasCode(error, 'E_DAEMON_CUT')) return [];
    throw error;
  });
}

export interface TopFormat {
  readonly colors: Colors;
  /** Columns and lines of the terminal; null: no limit. */
  readonly width: number | null;
  readonly height: number | null;
  /** Wall clock, ms. */
  readonly now: number;
  /** Whose daemon it is; default: this host. */
  readonly host?: string;
}

/** What does not fit is counted: problems, devices and pools come first, then running jobs, then the queue. */
export function topLines(
  { status, devices, jobs }: TopView,
  { colors, width, height, now, host = hostname() }: TopFormat,
): string[] {
  const format = { colors, width };
  const running = jobs.filter(({ state }) => state !== 'queued' && state !== 'waiting');
  const queued = jobs.filter(({ state }) => state === 'queued' || state === 'waiting');
  const busy = status.pools.reduce((sum, pool) => sum + busyOf(pool), 0);
  const time = new Date(now).toLocaleTimeString('en-GB');
  const lines = [colors.bold(`onejob on ${host}, ${time}: ${busy} busy, ${queued.length} waiting`)];
  for (const problem of [...status.problems, ...status.missing.map(({ why }) => why), ...status.quarantined.map(({ why }) => why)])
    lines.push(...hang('! ', printable(problem), width).map(colors.red));
  const section = (title: string, rows: readonly Readonly<Record<string, string>>[], left: number): void => {
    if (rows.length === 0) return;
    const room = height === null ? rows.length : Math.max(1, left - lines.length - 3);
    const shown = rows.length > room ? rows.slice(0, room - 1) : rows;
    lines.push('', ...titledTable(shown, format));
    if (shown.length < rows.length) lines.push(colors.dim(`${rows.length - shown.length} more ${title}`));
  };
  const all = height ?? Number.POSITIVE_INFINITY;
  section(
    'devices',
    devices.map((device) => deviceRow(device, jobs, colors)),
    all * 0.5,
  );
  section(
    'pools',
    status.pools.map((pool) => poolRow(pool, colors)),
    all * 0.7,
  );
  section(
    'jobs',
    running.map((job) => jobRow(job, now)),
    all * 0.85,
  );
  section(
    'jobs wait',
    queued.map((job) => queueRow(job, now)),
    all,
  );
  return lines.slice(0, height ?? lines.length).map((line) => cut(colored(line), width));
}

function busyOf(pool: PoolView): number {
  return pool.slots.filter(({ agent }) => agent.state === 'busy' || agent.state === 'stopping' || agent.state === 'killing').length;
}

function deviceRow(
  { uuid, model, index, memoryMiB, state, slot, agents, why, use }: DeviceView,
  jobs: readonly JobView[],
  colors: Colors,
) {
  const used = use?.memoryUsedMiB ?? null;
  const gib = (mib: number) => (mib / 1024).toFixed(1);
  const job = jobs.find((one) => one.agent !== null && agents.includes(one.agent));
  const paint = state === 'quarantined' || state === 'missing' ? colors.red : state === 'leased' ? colors.green : colors.dim;
  return {
    DEVICE: `${index === null ? '' : `${index} `}${uuid.slice(0, 12)}`,
    MODEL: printable(model),
    STATE: paint(state),
    MEMORY: used === null ? '-' : `${gib(used)}${memoryMiB === null ? '' : ` of ${gib(memoryMiB)}`} GiB`,
    USE: use?.utilization == null ? '-' : bar(use.utilization),
    TEMP: use?.temperature == null ? '-' : `${use.temperature} °C`,
    'USED BY': job === undefined ? (slot ?? '') + (why === null ? '' : ` ${printable(why)}`) : `${slot} job ${job.id}`,
  };
}

/** `██████····  61%` */
function bar(percent: number): string {
  const full = Math.round(Math.min(100, Math.max(0, percent)) / 10);
  return `${'█'.repeat(full)}${'·'.repeat(10 - full)} ${String(Math.round(percent)).padStart(3)}%`;
}

function poolRow(pool: PoolView, colors: Colors) {
  const ready = pool.slots.filter(({ standby, agent }) => standby.state === 'standby' || agent.online === true).length;
  const held = pool.paused.length > 0 ? 'paused' : pool.draining ? 'draining' : pool.backoff !== null ? 'backs off' : '';
  return {
    POOL: pool.name,
    SERVICE: pool.service,
    AGENTS: String(pool.agents),
    BUSY: String(busyOf(pool)),
    READY: String(ready),
    WAITING: pool.waiting === null ? '-' : String(pool.waiting),
    STATE: colors.yellow(pool.backoff === null ? held : `${held}: ${printable(pool.backoff.reason)}`),
  };
}

function jobRow(job: JobView, now: number) {
  return {
    JOB: job.id,
    POOL: job.pool || '-',
    STATE: job.state,
    RUNS: ageOf(job.startedAt, now),
    COMMAND: printable(titleOf(job)),
  };
}

function queueRow(job: JobView, now: number) {
  return {
    WAITING: job.id,
    POOL: job.pool || '-',
    FOR: ageOf(job.submittedAt, now),
    STARTS: startText(job) ?? '-',
    WHY: printable(job.reason ?? agentsBusy),
    COMMAND: printable(titleOf(job)),
  };
}

function ageOf(since: number | null, now: number): string {
  return since === null ? '-' : formatAge(now - since);
}
