/** Asks the daemons of all hosts of the hosts file at the same time, each in bounded time. */
import { abortable } from '../base/abortable.ts';
import { OnejobError } from '../base/errors.ts';
import { toErrorView } from '../contract/http-errors.ts';
import type { ErrorView } from '../contract/schema.ts';
import { timeLimit } from '../system/system-clock.ts';
import { type Connection, connect } from './connect.ts';
import { type HostPlace, readHosts } from './hosts.ts';
import { createRemote } from './remote.ts';
import { findPlace, type Session } from './session.ts';
import { hang, printable } from './text.ts';

/** ms for one host. */
const patience = 20_000;
/** Hosts that are asked at the same time. */
const atOnce = 16;

export interface HostAnswer<T> {
  readonly host: string;
  /** As in the file. */
  readonly place: string;
  readonly answer: T | null;
  /** Why there is no answer; else null. */
  readonly error: ErrorView | null;
}

type Question<T> = (client: Connection['client']) => Promise<T>;

/** In the order of the file. @throws OnejobError E_CONFIG if there is no such file, or it is invalid */
export async function askHosts<T>(session: Session, question: Question<T>): Promise<HostAnswer<T>[]> {
  const { output, context } = session;
  const { hosts } = await readHosts(context.environment);
  const left = [...hosts].map(([host, place], at) => ({ host, place, at }));
  const found: HostAnswer<T>[] = [];
  output.progress(`asking ${hosts.size} hosts`);
  const ask = async (): Promise<void> => {
    for (let next = left.shift(); next !== undefined; next = left.shift())
      found[next.at] = await askHost(session, next.host, next.place, question);
  };
  await Promise.all(Array.from({ length: atOnce }, ask));
  output.progress(null);
  return found;
}

async function askHost<T>(session: Session, host: string, place: HostPlace, question: Question<T>): Promise<HostAnswer<T>> {
  const about = { host, place: place?.shown ?? 'local' };
  const { flags, context } = session;
  const { variables, environment, cwd } = context;
  // With ONEJOB_HOST the session has no place of its own.
  const ofHost = () => findPlace(flags, environment, cwd);
  const remote = place === null ? null : createRemote({ host: place, variables, interactive: false, progress: () => {} });
  const limit = timeLimit(patience);
  try {
    using connection = await connect({ ...session, remote, place: ofHost }, { start: false, signal: limit, patience: 0 });
    return { ...about, answer: await abortable(question(connection.client), limit), error: null };
  } catch (error) {
    const silent = `It has not answered within ${patience / 1000} s.`;
    const hint = 'Check whether it is up, and not overloaded.';
    const known = limit.aborted ? new OnejobError('E_HOST', silent, { hint, retry: true }) : error;
    return { ...about, answer: null, error: toErrorView(known) };
  } finally {
    await remote?.close();
  }
}

/** Lines of what is wrong: of each host that did not answer, and what `texts` says of the others. */
export function hostProblems<T>(
  found: readonly HostAnswer<T>[],
  { colors, width }: Pick<Session['output'], 'colors' | 'width'>,
  texts: (answer: T) => readonly string[],
): string[] {
  return found.flatMap(({ host, answer, error }) => {
    const said = answer === null ? [`${error?.message}${error?.hint == null ? '' : ` ${error.hint}`}`] : texts(answer);
    return said.flatMap((text) =>
      hang('! ', printable(`${host}: ${text}`), width).map(answer === null ? colors.red : colors.yellow),
    );
  });
}
