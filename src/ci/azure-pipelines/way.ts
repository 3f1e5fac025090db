/** Who makes an agent known to the service: what config asks for, as far as the image allows it. */

import { OnejobError } from '../../errors.ts';
import type { AgentInside } from './look-inside.ts';
import type { AzureServiceConfig } from './type.ts';

export type Way = 'manager' | 'in-agent' | 'image';

/** @throws OnejobError E_AGENT_ABSENT for an image that cannot be an agent in this way */
export function wayOf(asked: AzureServiceConfig['registration'], inside: AgentInside, pool: string): Way {
  const way = asked === 'auto' ? (inside.version === null ? 'image' : 'manager') : asked;
  const absent = (what: string, hint: string): never => {
    throw new OnejobError('E_AGENT_ABSENT', `Cannot make agents for pool ${pool}: ${what}`, { hint });
  };
  if (way === 'image') {
    if (inside.start === null)
      return absent(
        'its image has neither an agent nor a start script of its own in /azp or /.',
        'Let onejob build the image ("image: { base: … }"), or put the agent into /opt/agent.',
      );
    return way;
  }
  if (inside.root === null)
    return absent(
      'its image has no agent (looked for bin/Agent.Listener in /opt/agent, /azp and others).',
      'Let onejob build the image ("image: { base: … }"), or set ONEJOB_AGENT_ROOT in the pool\'s env to where it lies.',
    );
  if (inside.version === null)
    return absent(
      `the agent in ${inside.root} does not run: ${(inside.problem ?? 'it says no version').slice(0, 300)}.`,
      'Mostly a library is missing in the image; run "bin/Agent.Listener --version" in it.',
    );
  if (!inside.isWritable)
    return absent(
      `the image's user (${inside.uid}) cannot write to ${inside.root}.`,
      'Give the folder to that user in the image, or set "user" in the pool.',
    );
  return way;
}
