/** The whole command line over a fake manager, for tests that need real processes: what `main.ts` is without the loop. */
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import type { CliContext, DaemonOptions } from '../../src/cli/context.ts';
import { findPlace, processContext } from '../../src/cli/session.ts';
import { runCli } from '../../src/cli.ts';

async function startDaemon(context: CliContext, options: DaemonOptions): Promise<number> {
  // Only a daemon loads these, as in `main.ts`: most processes of a test are clients.
  const { startApi } = await import('../../src/api/server.ts');
  const { prepareDirectory } = await import('../../src/store/directory.ts');
  const { takeLead } = await import('../../src/store/lead.ts');
  const { createFakeManager } = await import('./fake-manager.ts');
  const { stateDir, socket } = await findPlace(options, context.environment, context.cwd);
  const lead = takeLead(prepareDirectory(stateDir));
  const manager = createFakeManager({ temporary: options.temporary });
  manager.open = process.env.FAKE_CLOSED !== '1';
  const tar = process.env.FAKE_ARTIFACTS;
  if (tar !== undefined) manager.artifactsOf = () => readFileSync(tar);
  const api = await startApi({ manager, socket: { path: socket, access: 'owner' }, version: options.version });
  options.log.info('listening', { socket });
  const signal = Promise.withResolvers<void>();
  context.process.onSignal(() => signal.resolve());
  const idle = options.temporary ? once(manager.events, 'idle') : new Promise(() => {});
  await Promise.race([once(manager.events, 'down'), idle, signal.promise]);
  await manager.end();
  await api.close();
  lead.release();
  return 0;
}

if (process.env.FAKE_BROKEN === '1' && process.argv.includes('up')) throw new Error('broken on purpose');
const context = processContext(process.env, {
  startDaemon: (options) => startDaemon(context, options),
  internetObstacle: async () => null,
  containersObstacle: async () => null,
  ociObstacle: async () => null,
});
process.exitCode = await runCli(context);
