/** `image: auto`: chooses an image again for another driver or other devices; an incomplete look takes no choice away (S6). */

import { OnejobError } from '../../base/errors.ts';
import { type Finding, fine } from '../../base/finding.ts';
import { fits } from '../../config/conditions.ts';
import type { Config, ImageRecipe, PoolConfig } from '../../config/config.ts';
import { type Inventory, noGpus } from '../../gpu/inventory.ts';
import { chooseImage } from '../../images/choose.ts';
import { type Arch, archOf, type Platform, readPlatform } from '../../images/request.ts';

/** An image, or in whole sentences why there is none. */
export type ImageOf = { readonly image: string } | { readonly problem: string };

type AutoPool = Pick<PoolConfig, 'name' | 'devices'> & { readonly imageRecipe: ImageRecipe };

export interface AutoImageParts {
  readonly pools: readonly AutoPool[];
  /** null where no image is published for the host's architecture. */
  readonly arch: Arch | null;
  readonly platform: Platform;
}

/** Chooses images for a config's pools on this host. `root`: where the host's file system begins. */
export async function openAutoImages({ pools }: Pick<Config, 'pools'>, root: string | null): Promise<AutoImages> {
  const auto = pools.flatMap(({ imageRecipe, ...pool }) => (imageRecipe?.base === 'auto' ? [{ ...pool, imageRecipe }] : []));
  const arch = archOf(process.arch);
  const platform = arch === null ? null : await readPlatform(arch, root ?? '/');
  return createAutoImages({ pools: auto, arch, platform });
}

export interface AutoImages {
  /** null before the first look, and for a pool with another kind of image. */
  of(pool: string): ImageOf | null;
  /** The image for a new sandbox. @throws OnejobError E_IMAGE_CHOICE with the reason when there is none */
  need(pool: string): string;
  /** Takes a new look at the host. Returns the pools that have another image now, or another reason for none. */
  saw(inventory: Inventory): string[];
  findings(pool: string): Finding[];
}

export function createAutoImages({ arch, platform, pools }: AutoImageParts): AutoImages {
  const chosen = new Map<string, ImageOf>();

  function of(pool: string): ImageOf | null {
    return chosen.get(pool) ?? null;
  }

  function need(pool: string): string {
    const chosen = of(pool) ?? { problem: 'The GPUs of this host have not been checked yet.' };
    if ('image' in chosen) return chosen.image;
    throw new OnejobError('E_IMAGE_CHOICE', `Cannot choose an image for pool ${pool}: ${lowerFirst(chosen.problem)}`, {
      hint: 'Type "onejob image choose --explain" to see how onejob chooses an image.',
      retry: of(pool) === null,
    });
  }

  function saw(inventory: Inventory): string[] {
    return pools.flatMap((pool) => {
      if (pool.devices.count === 0) return [];
      const before = of(pool.name);
      if (before !== null && !inventory.complete) return [];
      const after = choose(pool, inventory);
      if (before !== null && textOf(before) === textOf(after)) return [];
      chosen.set(pool.name, after);
      return [pool.name];
    });
  }

  function findings(pool: string): Finding[] {
    const chosen = of(pool);
    const subject = `pool ${pool}`;
    if (chosen === null) return [];
    if ('image' in chosen) return [fine(subject, `Its image is ${chosen.image} (image: auto).`)];
    const hint = 'Type "onejob image choose --explain" for the reasoning.';
    return [{ level: 'error', subject, message: `Cannot choose an image for it: ${lowerFirst(chosen.problem)}`, hint }];
  }

  function choose({ devices: request, imageRecipe }: AutoPool, inventory: Inventory): ImageOf {
    if (arch === null) return { problem: `No image is published for the architecture of this host, ${process.arch}.` };
    // One image for all agents of a pool, whichever of its devices they have.
    const devices = request.count === 0 ? [] : inventory.devices.filter((device) => fits(device, request)).map(({ uuid }) => uuid);
    if (request.count !== 0 && devices.length === 0) {
      const seen = inventory.complete ? '' : ', as far as they could be read';
      return { problem: `No device of this host matches what it asks for${seen}.` };
    }
    const { flavour, distribution } = imageRecipe;
    const archFrom = 'this host';
    const { image, problem } = chooseImage({ arch, archFrom, platform, inventory, devices, flavour, distribution });
    return image === null ? { problem } : { image };
  }

  for (const pool of pools) if (pool.devices.count === 0) chosen.set(pool.name, choose(pool, noGpus));

  return { of, need, saw, findings };
}

function textOf(chosen: ImageOf): string {
  return 'image' in chosen ? chosen.image : chosen.problem;
}

/** A sentence after a colon, unless it begins with a name. */
function lowerFirst(sentence: string): string {
  return /^[A-Z][a-z]* /.test(sentence) && !/^(?:NVIDIA|Driver|CUDA|Tesla|Quadro)\b/.test(sentence)
    ? `${sentence.slice(0, 1).toLowerCase()}${sentence.slice(1)}`
    : sentence;
}
