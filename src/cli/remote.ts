/** The daemon of another host, for the commands of one session: connects when it is first needed, and again when it was cut off. */
import type { Duplex } from 'node:stream';
import { OnejobError } from '../base/errors.ts';
import { fromErrorView } from '../contract/http-errors.ts';
import { timeLimit } from '../system/system-clock.ts';
import type { SshHost } from './ssh.ts';

export interface RemoteParts {
  readonly host: SshHost;
  readonly variables: Readonly<Record<string, string | undefined>>;
  /** Whether ssh may ask somebody at the terminal, such as for a passphrase. */
  readonly interactive: boolean;
  readonly progress: (text: string | null) => void;
  /** ms until the host must have answered. Default 20 s, or 2 min if somebody may have to type. */
  readonly patience?: number;
}

export interface Remote {
  /** The host, as it was written. */
  readonly shown: string;
  /** A function that opens connections to the daemon. @throws OnejobError E_HOST, E_API_VERSION, or why there is no daemon there */
  dial(signal: AbortSignal): Promise<() => Duplex>;
  close(): Promise<void>;
}

export function createRemote(parts: RemoteParts): Remote {
  const { host, variables, interactive, progress, patience = interactive ? 120_000 : 20_000 } = parts;
  let open: { dial(): Duplex; readonly isOver: boolean; close(): Promise<void> } | null = null;

  async function connect(outer: AbortSignal) {
    const [{ startSsh }, { openTunnel, readGreeting }] = await Promise.all([import('./ssh.ts'), import('../api/tunnel.ts')]);
    const limit = timeLimit(patience);
    const ssh = startSsh(host, { variables, interactive });
    try {
      progress(`connecting to ${host.shown}`);
      const greeting = await readGreeting(ssh.stdout, AbortSignal.any([outer, limit]));
      if (greeting === null) {
        await Promise.race([ssh.ended, new Promise((resolve) => limit.addEventListener('abort', resolve, { once: true }))]);
        throw ssh.failure();
      }
      if ('error' in greeting) {
        const { message, hint, ...error } = greeting.error;
        throw fromErrorView({ ...error, message: `On ${host.shown}: ${message}`, hint: hint === null ? null : `There: ${hint}` });
      }
      const tunnel = openTunnel(ssh.pipe());
      return {
        dial: tunnel.dial,
        get isOver() {
          return tunnel.isOver;
        },
        async close() {
          tunnel.close();
          await ssh.close();
        },
      };
    } catch (error) {
      await ssh.close();
      outer.throwIfAborted();
      if (!limit.aborted) throw error;
      const message = `Cannot reach ${host.shown}: no answer within ${patience / 1000} s.`;
      throw new OnejobError('E_HOST', message, { hint: 'Check whether it is up, and not overloaded.', retry: true });
    } finally {
      progress(null);
    }
  }

  return {
    shown: host.shown,
    async dial(signal) {
      if (open?.isOver === true) {
        await open.close();
        open = null;
      }
      open ??= await connect(signal);
      return open.dial;
    },
    async close() {
      await open?.close();
      open = null;
    },
  };
}
