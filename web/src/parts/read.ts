/** What is read when a page is looked at, and does not follow events. */
import { type ReactNode, useEffect, useState } from 'react';
import { ask, get } from '../api.ts';
import { explained } from './dialog.tsx';

export interface Read<T> {
  /** null until it is read. */
  readonly data: T | null;
  readonly problem: ReactNode;
}

/** Reads an address, and again when it changes; null: nothing. */
export function useRead<T>(address: string | null, parse?: (response: Response) => Promise<T>): Read<T> {
  const [answer, setAnswer] = useState<(Read<T> & { readonly address: string }) | null>(null);
  // biome-ignore lint/correctness/useExhaustiveDependencies: the same for an address
  useEffect(() => {
    if (address === null) return;
    const gone = new AbortController();
    const read = parse === undefined ? get<T>(address, gone.signal) : ask(address, { signal: gone.signal }).then(parse);
    read.then(
      (data) => setAnswer({ address, data, problem: null }),
      (error: unknown) => {
        if (!gone.signal.aborted) setAnswer({ address, data: null, problem: explained(error) });
      },
    );
    return () => gone.abort();
  }, [address]);
  return answer?.address === address ? answer : { data: null, problem: null };
}
