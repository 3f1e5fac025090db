/**
 * Tells the service manager what the daemon is doing. Node has no datagram sockets of the unix family, so systemd's own
 * `systemd-notify` sends the message: as root in the name of the daemon, which called it. A user may not do that, so a user's unit
 * needs `NotifyAccess=all`. With that, its jobs can send messages too.
 * https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html
 */

import type { Log } from '../base/log.ts';
import { type Clock, every } from '../core/clock.ts';
import { run } from './run.ts';

/** ms that one message may take. */
const patience = 10_000;

export interface Notified {
  /** `NOTIFY_SOCKET`, and ms within which systemd wants to hear of the daemon; null: it was not started by systemd. */
  readonly serviceManager: { readonly socket: string; readonly watchdog: number | null } | null;
  /** `PATH`, to find `systemd-notify`. */
  readonly path: string;
}

/** Says that the daemon is ready, and feeds the watchdog until it is disposed; then says that it is stopping. Never fails. */
export function notifyReady({ serviceManager, path }: Notified, clock: Clock, log: Log): AsyncDisposable {
  if (serviceManager === null) return { async [Symbol.asyncDispose]() {} };
  const { socket, watchdog } = serviceManager;
  const tell = async (...words: string[]): Promise<void> => {
    const { error } = await run('systemd-notify', words, { env: { PATH: path, NOTIFY_SOCKET: socket }, timeout: patience });
    if (error !== null) log.warn('failed to notify the service manager', { message: words.join(' '), error });
  };
  void tell('--ready', `MAINPID=${process.pid}`);
  // Half of the time, as sd_watchdog_enabled(3) recommends.
  const feed = () => tell('WATCHDOG=1');
  const stop = watchdog === null ? null : every(clock, watchdog / 2, feed, () => {});
  return {
    async [Symbol.asyncDispose]() {
      stop?.();
      await tell('STOPPING=1');
    },
  };
}
