/** The context of a real command line: this process. */
import { readEnvironment } from '../config/environment.ts';
import type { CliContext, HostActions } from './session.ts';

/** `variables`: the environment as it is. */
export function processContext(variables: Readonly<Record<string, string | undefined>>, host: HostActions): CliContext {
  const [script = ''] = process.argv.slice(1, 2);
  const args = process.argv.slice(2);
  // Every user of the host can read the arguments of a process, and one of these may be a token.
  if (args[0] === 'azure' || args[0] === 'manager') process.title = 'onejob azure';
  return {
    args,
    variables,
    environment: readEnvironment(variables),
    cwd: process.cwd(),
    stdin: () => process.stdin,
    stdout: process.stdout,
    stderr: process.stderr,
    self: [process.execPath, ...process.execArgv, script],
    process: {
      onSignal(handler) {
        process.on('SIGINT', handler).on('SIGTERM', handler);
        return () => void process.off('SIGINT', handler).off('SIGTERM', handler);
      },
      onHangup(handler) {
        process.on('SIGHUP', handler);
        return () => void process.off('SIGHUP', handler);
      },
      exit: (code) => process.exit(code),
    },
    host,
  };
}
