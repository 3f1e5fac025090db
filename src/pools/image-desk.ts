/** Answers what is asked about images that onejob builds, by the images of pools and what is on the Engine. */
import { toErrorView } from '../api/http-errors.ts';
import type { ImageOutcome } from '../api/image-schema.ts';
import type { ImageDesk } from '../api/manager.ts';
import type { PoolConfig } from '../config/config.ts';
import { OnejobError } from '../errors.ts';
import type { Built } from '../images/builder.ts';
import { imageLabels } from '../images/plan.ts';
import type { PoolImages } from './pool-images.ts';

export function createImageDesk(images: PoolImages, pools: readonly Pick<PoolConfig, 'name' | 'recipe'>[]): ImageDesk {
  const chosen = (asked: readonly string[]): readonly string[] => {
    const unknown = asked.find((name) => !pools.some((pool) => pool.name === name));
    if (unknown === undefined) return asked.length === 0 ? images.names : asked;
    const known = pools.map((pool) => pool.name).join(', ');
    throw new OnejobError('E_POOL_UNKNOWN', `There is no pool "${unknown}".`, { hint: `The pools are: ${known}.` });
  };

  return {
    async list(signal) {
      const now = await images.used(signal);
      const builder = await images.open();
      return (await builder.list(signal)).map(({ reference, id, labels, size, created, containers }) => ({
        reference,
        id,
        pools: [...now].filter(([, built]) => built.id === id).map(([pool]) => pool),
        base: labels[imageLabels.base] ?? null,
        agent: labels[imageLabels.agentVersion] ?? null,
        size,
        createdAt: created,
        containers,
      }));
    },

    async make(what, asked, progress, signal) {
      const outcomes: ImageOutcome[] = [];
      for (const pool of chosen(asked)) {
        if (!images.names.includes(pool)) {
          const image = images.base(pool) ?? pools.find(({ name }) => name === pool)?.recipe.image ?? null;
          outcomes.push({ pool, image, agent: null, what: 'there', problem: null });
          continue;
        }
        await images.look(pool, signal);
        const before = images.built(pool);
        outcomes.push(await one(pool, before));
      }
      return outcomes;

      async function one(pool: string, before: Built | null): Promise<ImageOutcome> {
        const about = { image: before?.reference ?? null, agent: before?.agentVersion ?? null };
        try {
          if (what === 'build') await images.need(pool, (line) => progress(pool, line), signal);
          else {
            const [refreshed] = await images.refresh([pool], progress, signal);
            if (refreshed !== undefined && refreshed.problem !== null) throw refreshed.problem;
          }
        } catch (error) {
          signal.throwIfAborted();
          return { pool, ...about, what: 'failed', problem: toErrorView(error) };
        }
        const after = images.built(pool);
        const change = after?.id === before?.id ? 'there' : before === null ? 'built' : 'newer';
        return { pool, image: after?.reference ?? null, agent: after?.agentVersion ?? null, what: change, problem: null };
      }
    },

    prune: (signal) => images.prune(signal),
  };
}
