/** The filter's program as another version of onejob has it: `node filter-of-version.ts VERSION filter --state-dir DIR`. */
import { runFilter } from '../../src/cli/filter.ts';
import { processContext, type Session } from '../../src/cli/session.ts';

const [version = '', , , stateDir = ''] = process.argv.slice(2);
const context = processContext(
  {},
  {
    startDaemon: async () => 1,
    internetObstacle: async () => null,
    containersObstacle: async () => null,
    ociObstacle: async () => null,
  },
);
process.exitCode = await runFilter({ context, flags: { stateDir }, version } as Session);
