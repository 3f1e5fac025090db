/** How a cloud of type `command` is written. */

import { key } from '../../schema/key.ts';
import { deathDate } from '../kit/keys.ts';

export const commandKeys = {
  program: key((v) => v.absolute, undefined, {
    description:
      'The program that creates, lists and removes machines. Only root and the user of onejob should be able to change it.',
    example: '/etc/onejob/incus-provider',
  }),
  options: key((v) => v.z.record(v.z.string(), v.text('text', v.oneLine)), undefined, 'map', {
    description: 'What the program gets as `options` with each request. No secrets.',
    example: '{ remote: lab, image: "images:ubuntu/24.04/cloud" }',
    shown: 'none',
  }),
  secrets: key((v) => v.z.record(v.z.string(), v.secretReference), undefined, 'map', {
    description: 'What the program gets as `secrets` with each request, on its standard input. onejob reads them for each call.',
    example: '{ password: { file: /etc/onejob/openstack.secret } }',
    shown: 'none',
  }),
  timeout: key((v) => v.duration(5_000, '5s'), 120_000, {
    description: 'How long the program may take for one answer. onejob then ends it, with everything that it started.',
    example: '5m',
  }),
  death_date: deathDate(
    'Who ends machines at the end of their `lifetime`. `cloud`: what the program says with the verb `end`; onejob removes a machine for which it does not confirm that. `manager-only`: only onejob ends them, and the machine itself with `shutdown_removes`.',
  ),
  shutdown_removes: key((v) => v.yesNo, false, {
    description:
      'Whether a shutdown inside a machine removes it for good, as with ephemeral instances of Incus. It then shuts itself down at the end of its `lifetime`.',
    example: 'true',
  }),
};
