/**
 * Sandboxes that cannot be made, gates that end at once, and an image that is another one from now on. Trouble must be met with
 * patience (S9), and nothing may be released that was made from what is not wanted any more (S11).
 */
import { OnejobError } from '../../src/base/errors.ts';
import type { SimHost } from './host.ts';
import type { Outside } from './scenario.ts';

/** What pools name in `image`. */
const image = 'box';
/** ms in which everybody has looked what an image is now. */
const looked = 90_000;
/** Tries of one slot in a row of failures: some soon after one another, then one every five minutes. */
const tries = (ms: number): number => 12 + ms / 200_000;

export function trouble(host: SimHost): Outside {
  const { engine, time } = host;
  const broken: string[] = [];
  const madeFrom = new Map<string, string>();
  let images = 0;
  let changedAt = Number.NEGATIVE_INFINITY;
  let awayAt = Number.NEGATIVE_INFINITY;
  let failures = 0;
  let refused = 0;
  let ended = 0;
  let since: number | null = null;
  let counted = 0;
  let startsBefore = 0;

  const begin = (ms: number): void => {
    [since, counted, startsBefore] = [time.now, 0, host.starts];
    time.after(ms, end);
  };
  const end = (): void => {
    since = null;
    engine.refusal = () => null;
    engine.gate = () => null;
  };
  const count = (): void => {
    failures += 1;
    counted += 1;
    if (since === null) return;
    const most = host.slots.length * tries(time.now - since) * (1 + host.starts - startsBefore);
    if (host.up !== null && counted > most)
      broken.push(`S9: a sandbox that cannot be made was tried ${counted} times in ${time.now - since} ms`);
  };

  engine.watchers.add({
    // A runtime without images says nothing.
    made: ({ spec }) => void madeFrom.set(spec.agent, spec.recipe.imageId ?? engine.image(image).id),
    removed: ({ spec }) => void madeFrom.delete(spec.agent),
    released({ spec }) {
      const made = madeFrom.get(spec.agent);
      // What has proved itself is used until something newer has.
      const isKept = host.up?.loop.reconciler.pools.some(({ rollout }) => rollout.isTrial && rollout.trusted?.id === made);
      const isOld = made !== engine.image(image).id && isKept !== true;
      if (isOld && time.now - Math.max(changedAt, awayAt) > looked)
        broken.push(`S11: agent ${spec.agent} was released, and its image was another one for ${time.now - changedAt} ms`);
    },
  });

  return {
    name: 'trouble',
    takes: {
      /** For `ms` the Engine makes no sandbox. */
      'trouble.refusal'({ ms, retry = true }) {
        if (since !== null) return;
        refused += 1;
        engine.refusal = () => {
          count();
          return new OnejobError('E_ENGINE_FAILED', 'The simulated Engine makes no sandbox.', { retry: retry === true });
        };
        begin(Number(ms));
      },
      /** For `ms` sandboxes end before their gate is ready. */
      'trouble.gate'({ ms, code = 1 }) {
        if (since !== null) return;
        ended += 1;
        engine.gate = () => {
          count();
          return Number(code);
        };
        begin(Number(ms));
      },
      /** Somebody pushes another image. */
      'trouble.image'() {
        images += 1;
        changedAt = time.now;
        engine.image(image).id = `sha256:${images}`;
        host.tell(`${image} is another image now`);
      },
    },
    broken() {
      if (!engine.isUp || host.up === null) awayAt = time.now;
      return broken.splice(0);
    },
    unsettled: () => null,
    calm: end,
    census: () => [],
    counts: () => ({ images, failures, refused, gatesEnded: ended }),
  };
}
