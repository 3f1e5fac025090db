/** Looks for newer agents once a day, so that images do not grow old, and removes what the new ones replace. */
import { type Clock, every } from '../core/clock.ts';
import { toFailure } from '../errors.ts';
import type { Log } from '../log.ts';
import type { PoolImages } from './pool-images.ts';

const day = 24 * 60 * 60_000;
/** How long after its start a manager looks first, in ms: not while everything begins. */
const firstLook = 60_000;

/** Begins to look soon, and goes on every day until the answer is called. Only images that are in use are renewed. */
export function renewImages(images: PoolImages, { clock, log }: { readonly clock: Clock; readonly log: Log }): () => void {
  if (images.names.length === 0) return () => {};
  const closing = new AbortController();
  const { signal } = closing;
  const look = () => renew(images, log, signal);
  const failed = (error: unknown): void => {
    if (!signal.aborted) log.warn('images not looked at', { reason: toFailure(error).message });
  };
  let cancel = clock.after(firstLook, () => {
    void look().catch(failed);
    cancel = every(clock, day, look, failed);
  });
  return () => {
    closing.abort();
    cancel();
  };
}

async function renew(images: PoolImages, log: Log, signal: AbortSignal): Promise<void> {
  const used = images.names.filter((name) => images.built(name) !== null);
  if (used.length === 0) return;
  const done = await images.refresh(used, () => {}, signal);
  for (const { pool, problem } of done) {
    if (problem !== null) log.warn('image not renewed', { pool, reason: toFailure(problem).message });
  }
  const builder = await images.open();
  // Those of the same recipes; what else is there may be another config's.
  const ids = new Set(used.map((name) => images.built(name)?.id));
  const recipes = new Set((await builder.list(signal)).filter(({ id }) => ids.has(id)).map(builder.recipeOf));
  const gone = await builder.prune((image) => ids.has(image.id) || !recipes.has(builder.recipeOf(image)), signal);
  if (gone.length > 0) log.info('old images removed', { images: gone });
  // Which packages are in use is only known of pools that could be looked at.
  if (done.every(({ problem }) => problem === null)) await builder.prunePackages();
}
