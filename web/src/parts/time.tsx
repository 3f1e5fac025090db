/** Times that keep themselves current. */
import { useTimed } from '../live/store.ts';
import { clockText, formatAge } from '../words/text.ts';

/** How long ago, or with `until` how long from now. Wall clock of the daemon, ms. */
export function Age({ at, until = false }: { readonly at: number; readonly until?: boolean }) {
  const text = useTimed((now) => formatAge(until ? at - now : now - at));
  return (
    <time className="age" dateTime={new Date(at).toISOString()} title={new Date(at).toLocaleString('en-GB')}>
      {text}
    </time>
  );
}

export function Clock({ at }: { readonly at: number }) {
  const text = useTimed((now) => clockText(at, now));
  return (
    <time dateTime={new Date(at).toISOString()} title={new Date(at).toLocaleString('en-GB')}>
      {text}
    </time>
  );
}
