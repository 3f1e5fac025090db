/** The store of pins of encrypted values, for `openJobSecrets`. */
import type { Clock } from '../core/clock.ts';
import { OnejobError } from '../errors.ts';
import type { Store } from '../store/store.ts';
import { type PipelinePattern, parsePipeline } from './pipelines.ts';

interface PinStoreParts {
  readonly store: Pick<Store, 'secretPins' | 'transaction'>;
  readonly clock: Pick<Clock, 'wall'>;
}

export type PinStore = ReturnType<typeof createPinStore>;

export function createPinStore({ store, clock }: PinStoreParts) {
  const { secretPins } = store;
  const of = (fingerprint: string): PipelinePattern[] => secretPins.of(fingerprint).map((pin) => pin.pipeline);
  return {
    /** The pipelines of a value's pins; empty when it was never used. */
    of,
    /** Pins a value that has no pin; its pins afterwards, another job's if that was faster. Durable when it returns. */
    first(fingerprint: string, pipeline: PipelinePattern, name: string): PipelinePattern[] {
      // `decidePin` has refused it: a pattern here would allow every pipeline.
      if (pipeline.includes('*') || parsePipeline(pipeline) === null)
        throw new OnejobError('E_BUG', 'A value cannot be pinned to no pipeline.');
      store.transaction({ durable: true }, () => secretPins.first({ fingerprint, pipeline, name, at: clock.wall() }));
      return of(fingerprint);
    },
  };
}
