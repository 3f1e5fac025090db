/** How soon a slot gets its next agent: at once as a rule, later and later when its agents keep coming to nothing. */
import type { Clock } from '../../../core/clock.ts';
import { retryWait } from './wake.ts';

export interface Pace {
  /** The slot's agent ended without having been of any use. */
  failed(slot: string): void;
  /** The slot's agent has been heard by the service. */
  fine(slot: string): void;
  /** Before when (the clock's `now`) the slot gets no new agent. */
  notBefore(slot: string): number;
  /** The service refuses this registration token; it is not shown again before `until` (the clock's `now`). */
  refused(service: string, token: string, until: number): void;
  accepted(service: string): void;
  /** Before when this token is not shown to the service again; another one may be at once. */
  refusal(service: string, token: string): number;
}

export function createPace(clock: Clock, random: () => number): Pace {
  const refusals = new Map<string, { token: string; until: number }>();
  const slots = new Map<string, { failures: number; until: number }>();
  return {
    failed(slot) {
      const failures = (slots.get(slot)?.failures ?? 0) + 1;
      slots.set(slot, { failures, until: clock.now() + retryWait(failures, random) });
    },
    fine: (slot) => void slots.delete(slot),
    notBefore: (slot) => slots.get(slot)?.until ?? Number.NEGATIVE_INFINITY,
    refused: (service, token, until) => void refusals.set(service, { token, until }),
    accepted: (service) => void refusals.delete(service),
    refusal(service, token) {
      const found = refusals.get(service);
      return found?.token === token ? found.until : Number.NEGATIVE_INFINITY;
    },
  };
}
