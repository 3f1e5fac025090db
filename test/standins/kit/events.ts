/** What happens at a stand-in, for tests that wait for it. */

export interface Events<Event extends { readonly kind: string }> {
  emit(event: Event): void;
  /** Calls `listener` with every event from now on; the returned function ends that. */
  on(listener: (event: Event) => void): () => void;
  /** The next event of that kind which fits. */
  next<K extends Event['kind']>(
    kind: K,
    fits?: (event: Extract<Event, { readonly kind: K }>) => boolean,
  ): Promise<Extract<Event, { readonly kind: K }>>;
}

export function createEvents<Event extends { readonly kind: string }>(): Events<Event> {
  const listeners = new Set<(event: Event) => void>();
  const on: Events<Event>['on'] = (listener) => {
    listeners.add(listener);
    return () => void listeners.delete(listener);
  };
  return {
    emit(event) {
      for (const listener of [...listeners]) listener(event);
    },
    on,
    next<K extends Event['kind']>(kind: K, fits?: (event: Extract<Event, { readonly kind: K }>) => boolean) {
      return new Promise<Extract<Event, { readonly kind: K }>>((resolve) => {
        const off = on((event) => {
          if (!isOf(event, kind) || fits?.(event) === false) return;
          off();
          resolve(event);
        });
      });
    },
  };
}

function isOf<Event extends { readonly kind: string }, K extends Event['kind']>(
  event: Event,
  kind: K,
): event is Extract<Event, { readonly kind: K }> {
  return event.kind === kind;
}
