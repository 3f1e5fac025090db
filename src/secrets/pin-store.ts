/** The store of pins of encrypted values, for `openJobSecrets`. */
import type { Clock } from '../core/clock.ts';
import { OnejobError } from '../errors.ts';
import type { Store } from '../store/store.ts';
import type { PinStore } from './job-secrets.ts';
import { parsePipeline } from './pipelines.ts';

interface PinStoreParts {
  readonly store: Pick<Store, 'secretPins' | 'transaction'>;
  readonly clock: Pick<Clock, 'wall'>;
}

export function createPinStore({ store, clock }: PinStoreParts): PinStore {
  const { secretPins } = store;
  const of = (fingerprint: string) => secretPins.of(fingerprint).map((pin) => pin.pipeline);
  return {
    of,
    first(fingerprint, pipeline, name) {
      // `decidePin` has refused it: a pattern here would allow every pipeline.
      if (pipeline.includes('*') || parsePipeline(pipeline) === null)
        throw new OnejobError('E_BUG', 'A value cannot be pinned to no pipeline.');
      store.transaction({ durable: true }, () => secretPins.first({ fingerprint, pipeline, name, at: clock.wall() }));
      return of(fingerprint);
    },
  };
}
