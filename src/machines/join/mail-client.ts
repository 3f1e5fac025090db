/** The same as client.ts for a machine that cannot call its controller: it writes on its console, and reads its mail. */

import { messageOf, OnejobError } from '../../base/errors.ts';
import { type Clock, sleep } from '../../core/clock.ts';
import type { JoinClient } from './client.ts';
import { lineOf } from './line.ts';
import { keyOf, type Mail, openBox } from './mail.ts';
import { hashOf, type MachineFile, stageText } from './protocol.ts';

export interface MailClientParts {
  readonly machine: Pick<MachineFile, 'run' | 'token'>;
  /** Writes one line on the console. */
  readonly write: (line: string) => void;
  /** null: there is none. */
  readonly mail: (signal: AbortSignal) => Promise<Mail | null>;
  readonly clock: Clock;
}

/** ms in which one try to join waits for mail, and from one look to the next. */
const [patience, lookEvery] = [90_000, 5_000];
/** ms from one beat on the console to the next while nothing changes. */
const beatEvery = 60_000;
/** ms without other mail after which there is no controller: one that is there writes each ten minutes. */
const lost = 15 * 60_000;

/** Methods throw as those of a `JoinClient` do, but without E_CLOUD_DENIED: nobody can refuse. */
export function createMailClient({ machine, write, mail, clock }: MailClientParts): JoinClient {
  const { run, token } = machine;
  /** The newest stage: it is told again with each beat, since a console keeps only its end. */
  let stage: string | null = null;
  let told: { readonly what: string; readonly at: number } | null = null;
  let newest: { readonly mail: Mail; readonly since: number } | null = null;

  const none = (why: string, cause?: unknown): OnejobError =>
    new OnejobError('E_CLOUD_UNREACHABLE', `Cannot reach the controller through the cloud: ${why}.`, { retry: true, cause });

  const say = (line: string): void => {
    try {
      write(line);
    } catch (error) {
      throw none(`cannot write to the console (${messageOf(error)})`, error);
    }
  };

  async function look(signal: AbortSignal): Promise<Mail | null> {
    const found = await mail(signal).catch((error: unknown) => {
      throw none(messageOf(error).replace(/\.$/, ''), error);
    });
    if (found !== null && (found.at !== newest?.mail.at || found.do !== newest.mail.do))
      newest = { mail: found, since: clock.now() };
    return newest?.mail ?? null;
  }

  return {
    async stage(name, text) {
      stage = lineOf(run, name, text.slice(-stageText));
      say(stage);
    },
    async join({ credential, version }, signal) {
      const key = await keyOf(credential);
      const { identityToRecipient } = await import('age-encryption');
      const recipient = await identityToRecipient(key);
      say(lineOf(run, 'join', JSON.stringify({ recipient, version })));
      for (const until = clock.now() + patience; clock.now() < until; await sleep(clock, lookEvery, signal)) {
        signal.throwIfAborted();
        const box = (await look(signal))?.box ?? null;
        const answer = box === null ? null : await openBox(box, key, hashOf(token));
        if (answer !== null) return answer;
      }
      throw none('it has sent no mail for this machine yet');
    },
    async beat(said, _credential, signal) {
      const problem = said.problem?.slice(0, 300) ?? null;
      const what = JSON.stringify([said.busy > 0, problem]);
      if (told?.what !== what || clock.now() - told.at >= beatEvery) {
        say(lineOf(run, 'beat', JSON.stringify({ at: Math.floor(clock.wall() / 1000), ...said, problem })));
        if (stage !== null) say(stage);
        told = { what, at: clock.now() };
      }
      const found = await look(signal);
      if (found === null || newest === null || clock.now() - newest.since > lost) throw none('it has sent no new mail');
      return found.do;
    },
  };
}
