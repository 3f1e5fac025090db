/**
 * The connection over which the controller asks this machine's onejob about its jobs. The machine dials, since nothing reaches it from
 * outside, and dials again whenever the connection ends.
 */
import { serveTunnel } from '../../api/tunnel.ts';
import { messageOf } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import { type Clock, doubling, sleep } from '../../core/clock.ts';
import type { Outbound } from '../../http/outbound.ts';
import { timeLimit } from '../../system/system-clock.ts';
import { type MachineFile, tunnelProtocol } from './protocol.ts';

export interface TunnelParts {
  /** `url`: of the controller. */
  readonly machine: Pick<MachineFile, 'run'> & { readonly url: string };
  readonly credential: string;
  /** Of this machine's daemon. */
  readonly socket: string;
  readonly upgrade: Outbound['upgrade'];
  readonly clock: Clock;
  readonly log: Pick<Log, 'warn'>;
}

/** Used by attend.ts. */
export interface Tunnel {
  /** Whether the controller asks something, did just now, or could not because it has no connection yet or lost it. */
  isBusy(): boolean;
  /** Until `signal` aborts. Never fails. */
  run(signal: AbortSignal): Promise<void>;
}

/** ms until it dials again: the first time, and the longest. */
const [firstWait, longestWait] = [1_000, 30_000];
/** ms to wait for the controller's answer, and without a byte from it: it looks every 20 s. */
const [patience, silence] = [30_000, 75_000];
/** ms for which one call may follow another. */
const between = 5_000;

export function createTunnel({ machine, credential, socket, upgrade, clock, log }: TunnelParts): Tunnel {
  const url = new URL(`${machine.url.replace(/\/+$/, '')}/cloud/tunnel?run=${machine.run}`);
  let open: { readonly streams: number } | null = null;
  let busyAt: number | null = null;
  /** Whether the connection broke while the controller asked something: it will ask again. */
  let isOwed = false;
  /** A controller that asked an earlier process of this machine will ask again, too. */
  let hasDialled = false;

  function isBusy(): boolean {
    if ((open?.streams ?? 0) > 0) busyAt = clock.now();
    return !hasDialled || isOwed || (busyAt !== null && clock.now() - busyAt < between);
  }

  async function once(signal: AbortSignal): Promise<void> {
    const dialling = AbortSignal.any([signal, timeLimit(patience)]);
    const pipe = await upgrade(url, tunnelProtocol, { authorization: `Bearer ${credential}` }, dialling);
    const close = (): void => void pipe.destroy();
    if (isOwed || !hasDialled) busyAt = clock.now();
    isOwed = false;
    hasDialled = true;
    // Before what listens below forgets what was asked.
    const broken = (): void => {
      isOwed = isBusy();
    };
    for (const event of ['end', 'close', 'error'] as const) pipe.once(event, broken);
    pipe.on('error', () => {});
    signal.addEventListener('abort', close, { once: true });
    let callOff = clock.after(silence, close);
    pipe.on('data', () => {
      isBusy();
      callOff();
      callOff = clock.after(silence, close);
    });
    try {
      const tunnel = serveTunnel(pipe, async () => socket);
      open = tunnel;
      if (signal.aborted) close();
      await tunnel.ended;
    } finally {
      for (const event of ['end', 'close', 'error'] as const) pipe.off(event, broken);
      callOff();
      signal.removeEventListener('abort', close);
      close();
      open = null;
    }
  }

  return {
    isBusy,
    async run(signal) {
      for (let failures = 0; !signal.aborted; ) {
        const began = clock.now();
        try {
          await once(signal);
          // A controller that accepts and closes must not be dialled in a loop.
          failures = clock.now() - began < longestWait ? failures + 1 : 0;
        } catch (error) {
          if (signal.aborted) return;
          failures += 1;
          hasDialled = true;
          if (failures === 1) log.warn('cannot open the tunnel to the controller; trying again', { reason: messageOf(error) });
        }
        if (failures > 0) await sleep(clock, doubling(firstWait, longestWait, failures), signal);
      }
    },
  };
}
