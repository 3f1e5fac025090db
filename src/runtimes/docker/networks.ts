/** Networks of sandboxes: one bridge per owner, made once, on which sandboxes cannot reach each other. */
import { OnejobError } from '../../errors.ts';
import { labels } from './create.ts';
import type { Engine } from './engine.ts';

export type Networks = ReturnType<typeof createNetworks>;

export function createNetworks(engine: Engine, owner: string) {
  const own = `onejob-${owner}`;
  let made: Promise<void> | null = null;

  const ensure = async (): Promise<void> => {
    const label = { [labels.owner]: owner };
    const options = { 'com.docker.network.bridge.enable_icc': 'false' };
    await engine.createNetwork({ Name: own, CheckDuplicate: true, Driver: 'bridge', Labels: label, Options: options });
    const seen = await engine.network(own);
    if (seen !== null && seen.Labels?.[labels.owner] !== owner) {
      throw new OnejobError('E_NAME_TAKEN', `Cannot create network "${own}": one of that name is there, and is not onejob's.`, {
        hint: `Look at it with "docker network inspect ${own}", and remove it if nothing needs it.`,
      });
    }
  };

  return {
    /** What the Engine calls the network a recipe asks for; makes it when it is ours. */
    resolve: async (network: string): Promise<string> => {
      switch (network) {
        case 'default':
          made ??= ensure();
          // A failure is for those who waited; the next one tries again.
          await made.catch((error: unknown) => {
            made = null;
            throw error;
          });
          return own;
        case 'internet':
          throw new OnejobError(
            'E_NOT_YET',
            'The network "internet" is not there yet: onejob cannot block private ranges so far.',
            {
              hint: 'Write network: default, none, host, or the name of a Docker network.',
            },
          );
        default:
          return network;
      }
    },
    /** After the Engine said that a network is gone: look again the next time. */
    forget: () => {
      made = null;
    },
    /** Removes ours; one that is in use stays. */
    sweep: async (signal: AbortSignal): Promise<void> => {
      made = null;
      for (const one of await engine.networks(`${labels.owner}=${owner}`, signal)) await engine.removeNetwork(one.Id);
    },
  };
}
