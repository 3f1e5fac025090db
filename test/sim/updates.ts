/**
 * Somebody pushes images: most work, and some have a gate that ends at once. One slot tries what is new (S9), the others continue with
 * what has proved itself (S11), and in the end all have the newest one that works.
 */
import { provesAfter } from '../../src/core/rollout.ts';
import type { SimHost } from './host.ts';
import type { Seen } from './runtime.ts';
import type { Outside } from './scenario.ts';

/** What pools name in `image`. */
const image = 'box';
/** ms in which everybody has looked what an image is now. */
const looked = 90_000;

export function updates(host: SimHost): Outside {
  const { engine, time } = host;
  const broken: string[] = [];
  const bad = new Set<string>();
  /** Slots that have had agents of an image before it proved itself. */
  const tried = new Map<string, Set<string>>();
  const proved = new Set<string>();
  let pushed = 0;
  let [releases, trials, failures, pruned] = [0, 0, 0, 0];
  let startsBefore = host.starts;
  let pushedAt = Number.NEGATIVE_INFINITY;
  let awayAt = Number.NEGATIVE_INFINITY;

  const idOf = ({ spec }: Seen): string => spec.recipe.imageId ?? '';
  /** Whether the world has seen that it works. */
  const isProved = (id: string): boolean => {
    const isThere = (one: Seen): boolean => idOf(one) === id && time.now - one.madeAt > provesAfter;
    if ([...engine.sandboxes.values()].some(isThere)) proved.add(id);
    return proved.has(id);
  };

  engine.gate = ({ recipe }) => {
    if (!bad.has(recipe.imageId ?? '')) return null;
    failures += 1;
    return 1;
  };
  engine.watchers.add({
    released(sandbox) {
      const { agent, slot, recipe } = sandbox.spec;
      if (host.isProbe(agent) || recipe.image !== image) return;
      const id = idOf(sandbox);
      // A manager that starts may choose another slot.
      if (startsBefore !== host.starts) tried.clear();
      startsBefore = host.starts;
      if (pushed > 0 && !isProved(id)) {
        const slots = tried.get(id) ?? new Set();
        tried.set(id, slots.add(slot));
        trials += 1;
        if (slots.size > 1) broken.push(`S9: agents of ${[...slots].join(' and ')} have image ${id}, which has not proved itself`);
      }
      releases += 1;
      const now = engine.image(image).id;
      if (id !== now && !bad.has(now) && isProved(now) && time.now - Math.max(pushedAt, awayAt) > looked + provesAfter)
        broken.push(`S11: agent ${agent} was released from image ${id}, and ${now} has worked for long`);
    },
    ended(sandbox) {
      if (sandbox.released && sandbox.exit?.kind === 'code' && sandbox.madeAt < time.now) proved.add(idOf(sandbox));
    },
  });

  const push = (isBad: boolean): void => {
    pushed += 1;
    pushedAt = time.now;
    const id = `sha256:${pushed}`;
    if (isBad) bad.add(id);
    isProved(engine.image(image).id);
    engine.image(image).id = id;
    host.tell(`${image} is another image now${isBad ? ', which does not work' : ''}`);
  };

  /** Standbys that are not what the image is now. */
  const outdated = (): string[] => {
    const { id } = engine.image(image);
    return host.slots.flatMap(({ key, standby }) => {
      const made = standby.kind === 'standby' ? engine.sandboxes.get(standby.agent)?.spec.recipe.imageId : id;
      return made === id ? [] : [key];
    });
  };

  return {
    name: 'updates',
    takes: {
      'updates.push': ({ bad: isBad = false }) => push(isBad === true),
      /** Somebody removes images that no sandbox has. */
      'updates.prune'() {
        const used = new Set([...engine.sandboxes.values()].map(({ spec }) => spec.recipe.imageId));
        for (let n = 0; n <= pushed; n++) {
          const id = n === 0 ? `sha256:${image}` : `sha256:${n}`;
          if (!used.has(id) && id !== engine.image(image).id) engine.pruned.add(id);
          // Nobody can go back any more, so it need not prove itself for long.
          proved.add(id);
        }
        pruned += 1;
      },
    },
    broken() {
      if (!engine.isUp || host.up === null) awayAt = time.now;
      // The first sandbox of a new image may fail before it is known that the image is another one.
      for (const { backoff } of host.up?.loop.reconciler.pools ?? [])
        if (backoff?.last.code === 'E_GATE_ENDED' && backoff.until - time.now > 5_000)
          broken.push(`S9: the whole pool backs off, because a new image fails: ${backoff.last.message}`);
      return broken.splice(0);
    },
    unsettled() {
      if (bad.has(engine.image(image).id)) return 'the image does not work';
      const [key] = outdated();
      return key === undefined ? null : `slot ${key} does not have the newest image`;
    },
    census: () => [],
    counts: () => ({ pushed, releases, trials, failures, pruned }),
  };
}
