/** What a service lets untrusted jobs ask: a list of its own, and how its answers look in a sandbox. */
import type { Asked } from './path.ts';
import type { Seal, Sealed } from './seal.ts';

export type Verdict =
  /** Said in the service's own form, `{message}`. */
  | { readonly kind: 'refused'; readonly status: 401 | 403 | 404; readonly why: string }
  /** Streamed both ways. `toldAs`: what the agent is told in the place of a status. */
  | { readonly kind: 'stream'; readonly toldAs?: (status: number) => number }
  /** Read whole before it goes on. */
  | {
      readonly kind: 'whole';
      /** Its body as it goes on, sent anew as it was read so that nobody reads another one there; null: `why` it is refused. `json` null: it is none. */
      readonly body?: (json: unknown) => string | null;
      readonly why?: string;
      /** The answer to a call that succeeded, as the sandbox may see it. `host`: under which the agent called here. @throws Error when it is none */
      readonly answer?: (json: unknown, seal: Seal, host: string) => unknown;
    };

export interface Rules {
  /** What the paths of its API begin with in a sandbox, such as `v3`; left out on the way. */
  readonly root: string;
  /** What the credential in `Authorization` begins with, such as `Token`. */
  readonly scheme: string;
  judge(sealed: Sealed, asked: Asked): Verdict;
}
