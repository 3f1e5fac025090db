/** `onejob notify test`: sends a message as the daemon does, with the config that a daemon would read. It needs no daemon. */

import { OnejobError } from '../base/errors.ts';
import { checkConfig, configError } from '../config/load.ts';
import { createOutbound } from '../http/outbound.ts';
import { testMessage } from '../notices/message.ts';
import { send, targetOf } from '../notices/send.ts';
import { systemClock } from '../system/system-clock.ts';
import { exitCodes } from './exit.ts';
import { configSource, type Session } from './session.ts';
import { printable } from './text.ts';
import { types } from './types.ts';

export async function notifyTest(session: Session): Promise<number> {
  const { output, context } = session;
  const { config, errors, paths } = await checkConfig({ types, ...configSource(session), look: null });
  const wrong = errors.filter(({ key }) => key === '' || /^notify(\W|$)/.test(key));
  if (wrong.length > 0) throw configError(wrong, paths.config);
  const { notify } = config;
  if (notify === null) {
    const hint = 'Write for example: notify: { webhook: { file: /etc/onejob/webhook.url } }';
    const where = paths.config === null ? 'There is no config file, so no' : `${paths.config.path} has no`;
    throw new OnejobError('E_CONFIG', `${where} "notify" that says where messages go.`, { hint });
  }
  const outbound = createOutbound(context.environment.proxies);
  try {
    const to = targetOf(notify);
    output.progress(`sending a message to ${to}`);
    const parts = { notify, env: context.environment, clock: systemClock, fetch: outbound.fetch, variables: context.variables };
    const answer = await send(testMessage(config.host, systemClock.wall()), parts, new AbortController().signal);
    output.progress(null);
    await output.result({ to, answer }, () => [`Sent a test message to ${to}. Answer: ${printable(answer)}`]);
    return exitCodes.ok;
  } finally {
    outbound.close();
  }
}
