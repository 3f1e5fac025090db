/** The entry point: the command line, and behind `up` the daemon. The only file that knows both. */

import { attempt } from './base/errors.ts';
import { exitCodes } from './cli/exit.ts';
import { processContext } from './cli/session.ts';
import { runCli } from './cli.ts';

// Node throws for a folder that was deleted, also where nobody would expect it.
if (attempt(process.cwd) === null) {
  process.stderr.write('onejob: the current folder no longer exists: go to another one with "cd".\n');
  process.exit(exitCodes.notRun);
}

const context = processContext(process.env, {
  async startDaemon(options) {
    const [{ runDaemon }, { readEnvironment }] = await Promise.all([import('./daemon.ts'), import('./config/environment.ts')]);
    return runDaemon(options, readEnvironment(), context.process);
  },
  async internetObstacle() {
    const { internetObstacle } = await import('./runtimes/docker/check.ts');
    return internetObstacle(context.environment.docker);
  },
  async containersObstacle(cards) {
    const { containersObstacle } = await import('./runtimes/docker/containers-obstacle.ts');
    return containersObstacle(context.environment.docker, cards);
  },
  async ociObstacle(name) {
    const { ociObstacleHere } = await import('./runtimes/docker/oci-runtime.ts');
    return ociObstacleHere(name, context.environment.docker);
  },
});

process.exitCode = await runCli(context);
