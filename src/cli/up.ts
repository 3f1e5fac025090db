/** `onejob up`: the daemon, in the foreground. Lines for a person on a terminal, JSON lines otherwise. */

import type { Instead } from '../config/load.ts';
import { createLog } from '../log.ts';
import { colorWanted } from './output.ts';
import type { Session } from './session.ts';
import { flow } from './text.ts';

export function up(
  { context, flags, version, output }: Session,
  options: { readonly temporary: boolean; readonly instead?: Instead },
): Promise<number> {
  const { stdout } = context;
  const json = output.json || stdout.isTTY !== true;
  const isTerminal = stdout.isTTY === true;
  const log = createLog({
    json,
    stream: stdout,
    color: colorWanted(context.environment) ?? isTerminal,
    layout: (lead, text) => flow(lead, text, isTerminal ? (stdout.columns ?? 80) : null),
  });
  return context.startDaemon({ ...flags, ...options, version, log, self: context.self });
}
