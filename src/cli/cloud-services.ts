/** The CI services of a config's hosts, for a command without a daemon that removes what machines have left there. */
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createLog } from '../base/log.ts';
import { createCiServices } from '../ci/index.ts';
import { noSlots } from '../ci/parts.ts';
import type { Config } from '../config/config.ts';
import type { CiService } from '../ports/ci-service.ts';
import { openStore } from '../store/store.ts';
import { removeTree } from '../system/foreign-tree.ts';
import { systemClock as clock } from '../system/system-clock.ts';
import type { Session } from './session.ts';

/** They have no agents, and a store that is empty and goes with them: a daemon may have the config's. */
export async function openHostServices({ context, version, output }: Session, config: Config) {
  await using parts = new AsyncDisposableStack();
  const dir = mkdtempSync(join(tmpdir(), 'onejob-cloud-'));
  parts.defer(() => removeTree(dir).then(() => {}));
  const store = openStore(join(dir, 'state'));
  parts.defer(() => store.close());
  const services = await createCiServices({
    config: { ...config, pools: config.hosts.flatMap(({ pools }) => pools) },
    store,
    clock,
    env: context.environment,
    variables: context.variables,
    log: createLog({ json: output.json, stream: context.stderr }),
    onejob: { version, self: [] },
    slots: noSlots,
  });
  parts.defer(() => services.own.close());
  const used: CiService[] = [...services.byName.values()].filter((service) => service !== services.own);
  parts.defer(() => Promise.all(used.map((service) => service.close?.(true))).then(() => {}));
  const opened = parts.move();
  return { services: used, [Symbol.asyncDispose]: () => opened.disposeAsync() };
}
