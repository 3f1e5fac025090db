/** The context of a real command line: this process. */
import { readEnvironment } from '../config/environment.ts';
import type { CliContext } from './context.ts';

/** `variables`: the environment as it is. */
export function processContext(
  variables: Readonly<Record<string, string | undefined>>,
  startDaemon: CliContext['startDaemon'],
): CliContext {
  const [script = ''] = process.argv.slice(1, 2);
  return {
    args: process.argv.slice(2),
    variables,
    environment: readEnvironment(variables),
    cwd: process.cwd(),
    stdout: process.stdout,
    stderr: process.stderr,
    self: [process.execPath, ...process.execArgv, script],
    onSignal(handler) {
      process.on('SIGINT', handler).on('SIGTERM', handler);
      return () => {
        process.off('SIGINT', handler).off('SIGTERM', handler);
      };
    },
    exit: (code) => process.exit(code),
    startDaemon,
  };
}
