/** `onejob init own-queue`: a config for jobs that are handed in with `onejob run`, made from a look at this host. */
import { availableParallelism } from 'node:os';
import { stringify } from 'yaml';
import { fits } from '../config/conditions.ts';
import type { Inventory } from '../gpu/inventory.ts';
import { exitCodes } from './exit.ts';
import { configPlace, refuseToOverwrite, writePrivate } from './init-files.ts';
import { sayProblems } from './init-steps.ts';
import { lookAtCards } from './look-at-cards.ts';
import type { Session } from './session.ts';

const anyCard = {
  ...{ count: 1, mig: null, model: null, uuids: [], vendor: null, memory: null, compute: null, share: 1 },
  display: 'allow',
} as const;
const mostAgents = 8;

/** The whole file: a pool for jobs without devices, and one with an agent for each card, or MIG instance, where there are some. */
export function ownQueueFile({ devices }: Pick<Inventory, 'devices'>, cores: number): { text: string; cards: number } {
  const cards = devices.filter((device) => fits(device, anyCard)).length;
  const slices = devices.filter((device) => fits(device, { ...anyCard, mig: true })).length;
  const asked = cards > 0 ? { count: 1 } : { count: 1, mig: true };
  const pools = {
    default: { agents: Math.min(mostAgents, Math.max(1, Math.floor(cores / 2))) },
    ...(cards + slices > 0 && { gpu: { agents: 'per-device', devices: asked } }),
  };
  const head = [
    '# Jobs that are handed in with "onejob run". Every key: docs/configuration.md; "onejob config show" tells what holds.',
    '# A job that asks for no devices goes to "default", "onejob run --devices 1" to "gpu". A pool may name its "image".',
  ];
  return { text: `${head.join('\n')}\n${stringify({ pools }, { lineWidth: 0 })}`, cards: cards > 0 ? cards : slices };
}

/** 1 when the config has problems. @throws OnejobError E_INIT_FILE */
export async function initOwnQueue(session: Session, { force }: { readonly force: boolean }, look = lookAtCards): Promise<number> {
  const { context, output, flags } = session;
  const config = configPlace(flags, context.environment);
  if (!force) refuseToOverwrite(config, '--config');
  const inventory = await look(session);
  if (!inventory.complete)
    output.say('not all GPUs of this host could be seen, see "onejob gpus"; the config is for those that were');
  const { text, cards } = ownQueueFile(inventory, availableParallelism());
  writePrivate(config, text);
  const isSound = await sayProblems(session, config);
  const named = flags.config === null ? '' : ` --config ${config}`;
  if (output.json) await output.value({ written: [config] });
  else
    await output.print(
      `Written: ${config}.`,
      '',
      'Next:',
      `  onejob up${named}        lead this host, in the foreground`,
      `  onejob doctor${named}    see whether anything is missing`,
      `  onejob run${named} -- echo hello`,
      ...(cards > 0 ? [`  onejob run${named} --devices 1 -- nvidia-smi -L`] : []),
    );
  return isSound ? exitCodes.ok : exitCodes.failed;
}
