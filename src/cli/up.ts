/** `onejob up`: the daemon, in the foreground. Lines for a person on a terminal, JSON lines otherwise. */

import type { Instead } from '../config/load.ts';
import { createLog } from '../log.ts';
import { colorWanted } from './output.ts';
import type { Session } from './session.ts';

export function up(
  { context, flags, version, output }: Session,
  options: { readonly temporary: boolean; readonly instead?: Instead },
): Promise<number> {
  const { stdout } = context;
  const json = output.json || stdout.isTTY !== true;
  const log = createLog({ json, stream: stdout, color: colorWanted(context.environment) ?? stdout.isTTY === true });
  return context.startDaemon({ ...flags, ...options, version, log, self: context.self });
}
