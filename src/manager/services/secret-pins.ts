/** Pins of encrypted values, for people through the API. */

import { OnejobError } from '../../base/errors.ts';
import type { SecretPins } from '../../contract/manager.ts';
import type { PinnedView } from '../../contract/schema.ts';
import type { Clock } from '../../core/clock.ts';
import type { SecretPin } from '../../store/secret-pins.ts';
import type { Store } from '../../store/store.ts';

interface Parts {
  readonly store: Pick<Store, 'secretPins' | 'transaction'>;
  readonly clock: Pick<Clock, 'wall'>;
}

/** Length of a complete fingerprint. */
const whole = 32;

export function createSecretPins({ store, clock }: Parts): SecretPins {
  const { secretPins } = store;
  const find = (text: string): string => {
    const found = [...new Set(secretPins.all().map((pin) => pin.fingerprint))].filter((each) => each.startsWith(text));
    const [only] = found;
    if (found.length === 1 && only !== undefined) return only;
    if (text.length === whole) return text;
    const count = only === undefined ? 'No pinned value has' : 'Several pinned values have';
    throw new OnejobError('E_SECRET_UNKNOWN', `${count} a fingerprint that begins with ${text}.`, {
      hint: 'Give the whole fingerprint, from the job\'s message, or from "onejob secret pins".',
    });
  };
  return {
    pins: () => [...Map.groupBy(secretPins.all(), (pin) => pin.fingerprint)].map(([fingerprint, its]) => view(fingerprint, its)),
    allow(text, pipelines) {
      const fingerprint = find(text);
      const at = clock.wall();
      store.transaction({ durable: true }, () => {
        for (const pipeline of pipelines) secretPins.allow({ fingerprint, pipeline, at });
      });
      return view(fingerprint, secretPins.of(fingerprint));
    },
    forget(text, pipeline) {
      const fingerprint = find(text);
      const forgotten = store.transaction({ durable: true }, () => {
        const count = secretPins.forget(fingerprint, pipeline);
        // Removing one pipeline does not mean that it may become the first again.
        if (pipeline !== null && count > 0 && secretPins.of(fingerprint).length === 0) throw last(fingerprint, pipeline);
        return count;
      });
      return { fingerprint, forgotten };
    },
  };
}

function last(fingerprint: string, pipeline: string): OnejobError {
  const message = `Cannot remove ${pipeline} from ${fingerprint}: no other pipeline may use it, so the next pipeline that uses it would become its owner, even ${pipeline} again.`;
  return new OnejobError('E_SECRET_LAST', message, {
    hint: `First set another owner: "onejob secret allow --pipeline ORGANISATION/PIPELINE ${fingerprint}". Without --pipeline, "forget" leaves it without an owner.`,
  });
}

function view(fingerprint: string, pins: readonly SecretPin[]): PinnedView {
  return {
    fingerprint,
    name: pins.find((pin) => pin.name !== null)?.name ?? null,
    pipelines: pins.map(({ pipeline, origin, at }) => ({ pipeline, origin, at })),
  };
}
