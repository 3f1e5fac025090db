/** A message for people, as programs and people read it. It never contains a secret, and no output of a job. */

import { formatDuration } from '../base/units.ts';
import { masked } from '../ci/kit/masked.ts';
import type { CauseKind, ToldNotices } from './decide.ts';

/** What a webhook gets as JSON, and a command on its standard input. Its keys are described in docs/operating.md. */
export interface Message {
  /** The same if a message is sent twice. */
  readonly id: string;
  readonly event: 'problem' | 'over' | 'test';
  readonly kind: CauseKind | 'test';
  /** Short name of the host. */
  readonly host: string;
  readonly subject: string;
  readonly message: string;
  readonly hint: string | null;
  /** When it was first seen, and when it was decided to tell people: wall clock, ms since the epoch. */
  readonly since: number;
  readonly at: number;
  /** One line, such as the subject of a mail. */
  readonly title: string;
  /** All of it for people. Chat services show this key. */
  readonly text: string;
}

/** Longest text of a cause. */
const longest = 600;

/** `host`: short name of this host. */
export function messageOf(notice: Omit<ToldNotices, 'stage'>, host: string): Message {
  const { key, kind, since, at } = notice;
  const event = notice.state === 'ending' ? 'over' : 'problem';
  const [subject, message] = [line(notice.subject), line(notice.message)];
  const hint = notice.hint === null ? null : line(notice.hint);
  const advice = event === 'over' || hint === null ? '' : ` ${hint}`;
  const lead = event === 'over' ? `Over after ${ageText(at - since)}: ` : '';
  return {
    id: `${key} ${at} ${event}`,
    event,
    kind,
    host,
    subject,
    message,
    hint,
    since,
    at,
    title: `onejob on ${host}: ${subject}${event === 'over' ? ': over' : ''}`,
    text: `onejob on ${host}: ${lead}${message}${advice}`,
  };
}

export function testMessage(host: string, wall: number): Message {
  const message = 'This is a test. Messages about this host arrive here.';
  return {
    id: `test ${wall}`,
    event: 'test',
    kind: 'test',
    host,
    subject: 'test',
    message,
    hint: null,
    since: wall,
    at: wall,
    title: `onejob on ${host}: test`,
    text: `onejob on ${host}: ${message}`,
  };
}

/** In minutes, for people. */
function ageText(ms: number): string {
  return formatDuration(Math.max(1, Math.round(ms / 60_000)) * 60_000);
}

/** The first line, without what looks like a password: further lines quote the output of agents. */
function line(text: string): string {
  const first = masked(text.split('\n', 1)[0] ?? '').replaceAll(/\p{Cc}+/gu, ' ');
  return first.length > longest ? `${first.slice(0, longest - 1)}…` : first;
}
