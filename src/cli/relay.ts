/**
 * The hidden `onejob relay`: what `--host ssh://…` runs on the other host. It finds the daemon there as any command does, and passes
 * connections on between its standard streams and the daemon's socket, so the rights are those of the user who logged in.
 */
import { Duplex } from 'node:stream';
import { greetingLine, serveTunnel } from '../api/tunnel.ts';
import { toErrorView } from '../contract/http-errors.ts';
import { daemonSocket } from './connect.ts';
import { exitCodes } from './exit.ts';
import type { Session } from './session.ts';

/** Ends with its standard input. 1 when there is no daemon. */
export async function relay(session: Session): Promise<number> {
  const { context, version } = session;
  const { stdout } = context;
  stdout.on('error', () => {});
  try {
    await daemonSocket(session);
  } catch (error) {
    stdout.write(greetingLine(version, toErrorView(error)));
    return exitCodes.failed;
  }
  stdout.write(greetingLine(version, null));
  await serveTunnel(Duplex.from({ readable: context.stdin(), writable: stdout }), () => daemonSocket(session)).ended;
  return exitCodes.ok;
}
