/** What `doctor` says of CI services: what each finds itself, in bounded time, and what is kept at services that are used no more. */
import type { FindingView } from '../api/schema.ts';
import type { CiService } from '../ci/ci-service.ts';
import type { Trial } from '../ci/trial.ts';
import type { Clock } from '../core/clock.ts';
import { OnejobError, toFailure } from '../errors.ts';
import type { RegistrationTable } from '../store/registrations.ts';

export interface ServiceFindingsParts {
  /** Those beside the own queue. */
  readonly services: readonly Pick<CiService, 'name' | 'check'>[];
  readonly registrations: Pick<RegistrationTable, 'open' | 'services'>;
  readonly clock: Clock;
  /** What services may try out. */
  readonly trial: Trial;
}

/** ms that one service may take: one that is away must not keep the rest of what `doctor` finds from being seen. */
const patience = 30_000;

export async function serviceFindings(parts: ServiceFindingsParts, signal: AbortSignal): Promise<FindingView[]> {
  const found = await Promise.all(parts.services.map((service) => checked(service, parts, signal)));
  return [...found.flat(), ...orphaned(parts)];
}

async function checked(
  service: Pick<CiService, 'name' | 'check'>,
  { clock, trial }: Pick<ServiceFindingsParts, 'clock' | 'trial'>,
  signal: AbortSignal,
): Promise<FindingView[]> {
  const subject = `service ${service.name}`;
  const limit = new AbortController();
  const late = Promise.withResolvers<FindingView[]>();
  const callOff = clock.after(patience, () => {
    const message = `It has not answered within ${patience / 1000} s, so nothing more is known of it.`;
    late.resolve([{ level: 'error', subject, message, hint: 'See whether this host reaches it, and ask again.' }]);
    limit.abort();
  });
  const check = async (): Promise<FindingView[]> => {
    try {
      return await service.check(AbortSignal.any([signal, limit.signal]), trial);
    } catch (error) {
      signal.throwIfAborted();
      const hint = error instanceof OnejobError ? error.hint : null;
      const message = error instanceof OnejobError ? error.message : toFailure(error).message;
      return [{ level: 'error', subject, message, hint }];
    }
  };
  try {
    return await Promise.race([check(), late.promise]);
  } finally {
    callOff();
  }
}

/** How many names a line shows. */
const named = 5;

function orphaned({ services, registrations }: ServiceFindingsParts): FindingView[] {
  const used = new Set(services.map(({ name }) => name));
  return registrations.services().flatMap((name) => {
    const names = used.has(name) ? [] : registrations.open(name).map((one) => one.name);
    if (names.length === 0) return [];
    const more = names.length > named ? ` and ${names.length - named} more` : '';
    const what = names.length === 1 ? 'One registration is' : `${names.length} registrations are`;
    return [
      {
        level: 'warning',
        subject: `service ${name}`,
        message: `${what} left at it, and no pool of the config uses it any more: ${names.slice(0, named).join(', ')}${more}.`,
        hint: 'Remove them in its pages, or give it a pool again and end with "onejob down --forget".',
      },
    ];
  });
}
