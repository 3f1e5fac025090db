/** `onejob up`: the daemon, in the foreground. Logs text to a terminal, otherwise JSON lines. */
import { createLog } from '../base/log.ts';
import type { DaemonOptions } from './context.ts';
import { colorWanted } from './output.ts';
import type { Session } from './session.ts';
import { flow, terminalSize } from './text.ts';

export function up(
  { context, flags, version, output }: Session,
  options: Pick<DaemonOptions, 'temporary' | 'onStop' | 'instead'>,
): Promise<number> {
  const { stdout } = context;
  const isTerminal = stdout.isTTY === true;
  const log = createLog({
    json: output.json || !isTerminal,
    stream: stdout,
    color: colorWanted(context.environment) ?? isTerminal,
    layout: (lead, text) => flow(lead, text, isTerminal ? terminalSize(stdout).columns : null),
  });
  const reloads = !isTerminal && context.stderr.isTTY !== true && !options.temporary && options.instead === undefined;
  return context.host.startDaemon({ ...flags, ...options, reloads, version, log, self: context.self });
}
