/** `onejob cloud join` and `onejob cloud attend`: what a machine of a cloud calls itself. Not for people. */

import { createLog } from '../base/log.ts';
import { createOutbound } from '../http/outbound.ts';
import { noProxies } from '../http/proxies.ts';
import { attendMachine, joinController } from '../machines/join/machine.ts';
import { systemClock } from '../system/system-clock.ts';
import { exitCodes } from './exit.ts';
import type { Session } from './session.ts';

type Work = typeof joinController | typeof attendMachine;

export const joinCloud = (session: Session, file: string): Promise<number> => machineCommand(session, file, joinController);
export const attendCloud = (session: Session, file: string): Promise<number> => machineCommand(session, file, attendMachine);

/** A signal ends it, as a success. */
async function machineCommand({ context, output, version, place }: Session, file: string, work: Work): Promise<number> {
  const log = createLog({ json: output.json, stream: context.stdout });
  const stop = new AbortController();
  const off = context.process.onSignal(() => stop.abort());
  const [outbound, direct] = [createOutbound(context.environment.proxies), createOutbound(noProxies)];
  try {
    const { socket } = await place();
    const { fetch, upgrade } = outbound;
    const parts = { file, socket, clock: systemClock, fetch, upgrade, metadata: direct.fetch, log, version };
    await work(parts, stop.signal);
  } catch (error) {
    if (!stop.signal.aborted) throw error;
  } finally {
    off();
    outbound.close();
    direct.close();
  }
  return exitCodes.ok;
}
