/** Every type of service and cloud, as the command line and the daemon pass them to the config. */
export { types } from '../../src/cli/types.ts';
