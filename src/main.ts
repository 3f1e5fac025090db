/** The entry point: the command line, and behind `up` the daemon. The only file that knows both. */
import { processContext } from './cli/session.ts';
import { runCli } from './cli.ts';

const context = processContext(process.env, {
  async startDaemon(options) {
    const [{ runDaemon }, { readEnvironment }] = await Promise.all([import('./daemon.ts'), import('./config/environment.ts')]);
    return runDaemon(options, readEnvironment(), context.process);
  },
  async internetObstacle() {
    const { internetObstacle } = await import('./runtimes/docker/check.ts');
    return internetObstacle(context.environment.docker);
  },
});

process.exitCode = await runCli(context);
