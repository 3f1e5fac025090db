/** Networks of sandboxes: one bridge per owner, made once, on which sandboxes cannot reach each other. */
import { OnejobError } from '../../errors.ts';
import { labels } from './create.ts';
import type { Engine } from './engine.ts';

export type Networks = ReturnType<typeof createNetworks>;

export function createNetworks(engine: Engine, owner: string) {
  const name = `onejob-${owner}`;
  const label = `${labels.owner}=${owner}`;
  let made: Promise<string> | null = null;

  /** Ours by age: an Engine makes several of one name when it is asked at the same time (20.10, measured). */
  const ours = async (): Promise<readonly { Id: string; Created: string }[]> =>
    (await engine.networks(label)).sort((a, b) => (`${a.Created} ${a.Id}` < `${b.Created} ${b.Id}` ? -1 : 1));

  const ensure = async (): Promise<string> => {
    if ((await ours()).length === 0) {
      const options = { 'com.docker.network.bridge.enable_icc': 'false' };
      await engine.createNetwork({
        Name: name,
        CheckDuplicate: true,
        Driver: 'bridge',
        Labels: { [labels.owner]: owner },
        Options: options,
      });
    }
    const [first, ...others] = await ours();
    if (first === undefined) {
      throw new OnejobError('E_NAME_TAKEN', `Cannot create network "${name}": one of that name is there, and is not onejob's.`, {
        hint: `Look at it with "docker network inspect ${name}", and remove it if nothing needs it.`,
      });
    }
    for (const { Id } of others) await engine.removeNetwork(Id);
    return first.Id;
  };

  return {
    /** What the Engine calls the network a recipe asks for; makes it when it is ours. */
    resolve: async (network: string): Promise<string> => {
      switch (network) {
        case 'default': {
          const making = made ?? ensure();
          made = making;
          return making.catch((error: unknown) => {
            // A failure is for those who waited; the next one tries again.
            if (made === making) made = null;
            throw error;
          });
        }
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
      for (const one of await engine.networks(label, signal)) await engine.removeNetwork(one.Id);
    },
  };
}
