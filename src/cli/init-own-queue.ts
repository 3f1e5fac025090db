/** `onejob init own-queue`: a config for jobs of `onejob run` that suits this host. */
import { availableParallelism } from 'node:os';
import { stringify } from 'yaml';
import type { Inventory } from '../gpu/inventory.ts';
import { configFlag, configPlace, refuseToOverwrite, tellWritten, writeFile } from './init-steps.ts';
import type { Session } from './session.ts';
import { countCards, lookAtCards } from './share-cards.ts';

const mostAgents = 8;

/** The whole file: a pool for jobs without devices and, if there are cards, one with an agent for each card or MIG instance. */
export function ownQueueFile(inventory: Pick<Inventory, 'devices'>, cores: number): { text: string; cards: number } {
  const { cards, areSlices } = countCards(inventory, null);
  const pools = {
    default: { agents: Math.min(mostAgents, Math.max(1, Math.floor(cores / 2))) },
    ...(cards > 0 && { gpu: { agents: 'per-device', devices: { count: 1, ...(areSlices && { mig: true }) } } }),
  };
  const head = [
    '# Jobs that are submitted with "onejob run". Every key: docs/configuration.md; "onejob config show" prints the values in use.',
    '# A job that asks for no devices goes to "default", "onejob run --devices 1" to "gpu". A pool may name its "image".',
  ];
  return { text: `${head.join('\n')}\n${stringify({ pools }, { lineWidth: 0 })}`, cards };
}

/** 1 when the config has problems. @throws OnejobError E_INIT_FILE */
export async function initOwnQueue(session: Session, { force }: { readonly force: boolean }, look = lookAtCards): Promise<number> {
  const { context, output, flags } = session;
  const config = configPlace(flags, context.environment);
  if (!force) refuseToOverwrite(config, '--config');
  const inventory = await look(session);
  if (!inventory.complete)
    output.say('not all GPUs of this host could be read, see "onejob gpus"; the config covers those that were');
  const { text, cards } = ownQueueFile(inventory, availableParallelism());
  writeFile(config, text);
  return tellWritten(session, [config], 'run the daemon in the foreground', [
    `  onejob run${configFlag(session)} -- echo hello`,
    ...(cards > 0 ? [`  onejob run${configFlag(session)} --devices 1 -- nvidia-smi -L`] : []),
  ]);
}
