/**
 * Takes back what stays at CI services when a manager ends: their placeholders (`down --forget`). Says of each service what it has
 * no more, and what it still has: an outage at this moment leaves entries that the next manager, or a person, has to remove.
 */

import type { ForgottenView } from '../api/schema.ts';
import type { CiService } from '../ci/ci-service.ts';
import { type Clock, deadline } from '../core/clock.ts';
import { OnejobError, toFailure } from '../errors.ts';
import type { Log } from '../log.ts';
import type { RegistrationTable } from '../store/registrations.ts';

export interface ForgetParts {
  /** Those beside the own queue. */
  readonly services: readonly Pick<CiService, 'name' | 'forget'>[];
  readonly registrations: Pick<RegistrationTable, 'open' | 'services'>;
  readonly clock: Clock;
  readonly log: Log;
}

/** ms a service may take: a manager that is to end must not wait for ever. */
const patience = 60_000;

/** `instead`: why nothing may be taken back now; null when all may be. */
export async function forgetServices(
  { services, registrations, clock, log }: ForgetParts,
  instead: string | null,
): Promise<ForgottenView[]> {
  const names = new Set([...services.map(({ name }) => name), ...registrations.services()]);
  const forget = async (name: string): Promise<ForgottenView> => {
    const before = registrations.open(name).map((one) => one.name);
    const service = services.find((one) => one.name === name);
    const failure =
      instead ?? (service === undefined ? `no pool of the config uses "${name}" any more` : await attempt(service, clock));
    const left = registrations.open(name).map((one) => one.name);
    const removed = before.filter((one) => !left.includes(one));
    const problem = left.length === 0 ? null : (failure ?? 'the service does not give them up yet');
    if (problem !== null) log.warn('registrations are left at the CI service', { service: name, left, reason: problem });
    else if (removed.length > 0) log.info('registrations forgotten', { service: name, removed });
    return { service: name, removed, left, problem };
  };
  return await Promise.all([...names].map(forget));
}

/** Names what CI services still list of agents that are gone: nobody takes that back before the next manager. */
export function tellLeft({ registrations, log }: Pick<ForgetParts, 'registrations' | 'log'>): void {
  for (const service of registrations.services()) {
    const left = registrations.open(service).filter(({ placeholder }) => !placeholder);
    if (left.length > 0)
      log.warn('entries of agents are left at the CI service, which the next manager removes', {
        service,
        left: left.map(({ name }) => name),
      });
  }
}

/** Why it could not be done; null when it was. */
async function attempt(service: Pick<CiService, 'forget'>, clock: Clock): Promise<string | null> {
  using limit = deadline(clock, patience);
  try {
    await service.forget?.(limit.signal);
    return null;
  } catch (error) {
    if (limit.passed) return `the service did not answer within ${patience / 1000} s`;
    // Without its hint, which may say that it is tried again: nobody is left who would.
    return error instanceof OnejobError ? error.message : toFailure(error).message;
  }
}
