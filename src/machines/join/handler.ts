/** What stands behind the server of machines: the ledger, and the controller that acts on what machines tell. */
import type { Duplex } from 'node:stream';
import type { BeatCall, JoinAnswer, Order, StageCall } from './protocol.ts';

/** What is stored of a machine's secrets: hashes (`hashOf`). */
export interface MachineSecrets {
  readonly token: string;
  /** null: no machine has joined with the token yet. */
  readonly credential: string | null;
  /** The machine has said that it joined: its token has no use any more, and it gets its config no second time. */
  readonly hasJoined: boolean;
}

/**
 * The server has checked who calls before it calls anything but `secretsOf`. Texts of machines have no control characters, but
 * anyone with the token could have chosen them. An error becomes a 503, after which the machine tries again.
 */
export interface MachineHandler {
  /** null: no machine of that run may call, since there is none, it was given up, or it had too much time for its join. */
  secretsOf(run: string): MachineSecrets | null | Promise<MachineSecrets | null>;
  /** A stage may come twice, and late. */
  stage(said: StageCall): void | Promise<void>;
  /**
   * Binds the run to a machine's credential, by its hash. It must be stored when this returns. False if another one was bound
   * meanwhile.
   */
  bind(run: string, credential: string): boolean | Promise<boolean>;
  /** What the machine gets. The same again when it asks again. */
  belongings(run: string): JoinAnswer | Promise<JoinAnswer>;
  /** A used token came with another credential: either a machine or a thief has the config that was given out first. */
  stolen(run: string, from: string): void | Promise<void>;
  beat(said: BeatCall): Order | Promise<Order>;
  /** What the machine says cannot be read now. */
  unheard(run: string, problem: string): void;
  /** The machine offers connections to its onejob. False: nobody wants them. */
  tunnel(run: string, pipe: Duplex): boolean;
  /** The package that machines install, a file; null: it is served elsewhere. */
  readonly package: string | null;
}
