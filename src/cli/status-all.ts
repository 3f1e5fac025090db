/** `onejob status --all`: every host of the hosts file in one table, all asked at the same time and each in bounded time. */
import { abortable } from '../base/abortable.ts';
import { OnejobError } from '../base/errors.ts';
import { toErrorView } from '../contract/http-errors.ts';
import type { ErrorView, PoolView, StatusView } from '../contract/schema.ts';
import { timeLimit } from '../system/system-clock.ts';
import { connect } from './connect.ts';
import { exitCodes } from './exit.ts';
import { type HostPlace, readHosts } from './hosts.ts';
import { createRemote } from './remote.ts';
import { findPlace, type Session } from './session.ts';
import { deviceProblems, isBusy, isWell, poolProblems } from './status.ts';
import { hang, printable, titledTable } from './text.ts';

/** ms for one host. */
const patience = 20_000;
/** Hosts that are asked at the same time. */
const atOnce = 16;

interface HostStatus {
  readonly host: string;
  /** As in the file. */
  readonly place: string;
  readonly status: StatusView | null;
  /** Why there is no status; else null. */
  readonly error: ErrorView | null;
}

/** 1 when a host has no daemon that answers, or not all is well there. */
export async function showAll(session: Session): Promise<number> {
  const { output, context } = session;
  const { hosts } = await readHosts(context.environment);
  const left = [...hosts].map(([host, place], at) => ({ host, place, at }));
  const found: HostStatus[] = [];
  output.progress(`asking ${hosts.size} hosts`);
  const ask = async (): Promise<void> => {
    for (let next = left.shift(); next !== undefined; next = left.shift())
      found[next.at] = await statusOf(session, next.host, next.place);
  };
  await Promise.all(Array.from({ length: atOnce }, ask));
  output.progress(null);
  if (output.json) for (const one of found) await output.value(one);
  else await output.print(...allLines(found, output));
  return found.every(({ status }) => status !== null && isWell(status)) ? exitCodes.ok : exitCodes.failed;
}

async function statusOf(session: Session, host: string, place: HostPlace): Promise<HostStatus> {
  const about = { host, place: place?.shown ?? 'local' };
  const { flags, context } = session;
  const { variables, environment, cwd } = context;
  // With ONEJOB_HOST the session has no place of its own.
  const ofHost = () => findPlace(flags, environment, cwd);
  const remote = place === null ? null : createRemote({ host: place, variables, interactive: false, progress: () => {} });
  const limit = timeLimit(patience);
  try {
    using connection = await connect({ ...session, remote, place: ofHost }, { start: false, signal: limit, patience: 0 });
    return { ...about, status: await abortable(connection.client.status(), limit), error: null };
  } catch (error) {
    const silent = `It has not answered within ${patience / 1000} s.`;
    const hint = 'Check whether it is up, and not overloaded.';
    const known = limit.aborted ? new OnejobError('E_HOST', silent, { hint, retry: true }) : error;
    return { ...about, status: null, error: toErrorView(known) };
  } finally {
    await remote?.close();
  }
}

/** A line for each host, then what is wrong. */
function allLines(found: readonly HostStatus[], { colors, width }: Session['output']): string[] {
  const rows = found.map(({ host, status }) => {
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
  const problems = found.flatMap(({ host, status, error }) => {
    const texts =
      error === null ? problemsOf(status as StatusView) : [`${error.message}${error.hint === null ? '' : ` ${error.hint}`}`];
    return texts.flatMap((text) =>
      hang('! ', printable(`${host}: ${text}`), width).map(error === null ? colors.yellow : colors.red),
    );
  });
  if (rows.length === 0) return ['No hosts.'];
  return [...titledTable(rows, { colors, width }), ...(problems.length === 0 ? [] : ['', ...problems])];
}

function problemsOf(status: StatusView): string[] {
  const ofPool = (pool: PoolView) =>
    [...poolProblems(pool), ...deviceProblems(pool, status)].map((text) => `${pool.name}: ${text}`);
  return [...(status.configChanged === null ? [] : [status.configChanged]), ...status.problems, ...status.pools.flatMap(ofPool)];
}
