/**
 * `onejob broker`: what carries the words of Buildkite agents, started by the daemon and by nobody else. It ends when it is
 * told to, not with the terminal or the daemon that began it.
 */
import { readFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { agentArch, machineId } from '../ci/buildkite/broker/host.ts';
import { boundLog } from '../ci/buildkite/broker-process.ts';
import { systemClock } from '../clock.ts';
import { OnejobError } from '../errors.ts';
import { createLog } from '../log.ts';
import { exitCodes } from './exit.ts';
import type { Session } from './session.ts';

/** ms between two looks at how large its log has become. */
const boundEvery = 60_000;

/** Resolves once it has ended. */
export async function runBroker({ context, flags, version }: Session): Promise<number> {
  const { stateDir, socket } = flags;
  if (stateDir === null || socket === null) {
    throw new OnejobError('E_USAGE', 'The broker needs --state-dir and --socket.', { hint: 'It is started by "onejob up".' });
  }
  const { startBroker } = await import('../ci/buildkite/broker/broker.ts');
  const log = createLog({ json: context.stderr.isTTY !== true, stream: context.stderr });
  const asked: string[] = [];
  let onTerm = (): void => {};
  // Ctrl-C at the daemon's terminal, and the terminal's end, are not meant for it.
  process.on('SIGHUP', () => {});
  const offSignal = context.onSignal((signal) => {
    if (signal !== 'SIGTERM') return;
    asked.push(signal);
    onTerm();
  });
  const broker = await startBroker({
    ...{ stateDir, socket, version, log },
    clock: systemClock,
    proxies: context.environment.proxies,
    random: Math.random,
    host: {
      hostname: hostname(),
      os: 'linux',
      arch: agentArch(process.arch),
      machineId: machineId((path) => readFileSync(path, 'utf8')),
      pid: process.pid,
    },
  });
  onTerm = () => {
    log.info('broker was asked to end', { signals: asked.length });
    if (asked.length > 1) broker.stop();
    else broker.leave();
  };
  if (asked.length > 0) onTerm();
  const bound = setInterval(() => boundLog(process.stderr.fd), boundEvery);
  await broker.ended;
  clearInterval(bound);
  offSignal();
  return exitCodes.ok;
}
