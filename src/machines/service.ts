/** What the API, and a command without a daemon, show and ask of machines in clouds. */

import { OnejobError } from '../base/errors.ts';
import type { CloudHost } from '../config/config.ts';
import { toErrorView } from '../contract/http-errors.ts';
import type { MachineService } from '../contract/manager.ts';
import type { CloudHostView, MachineView } from '../contract/schema.ts';
import type { Cloud } from '../ports/cloud.ts';
import { suggest } from '../schema/problem.ts';
import { costOf, isWanted, type LeftRegistrations, type Machine } from '../store/machine.ts';
import type { OwnedCloud } from './cloud-memory.ts';
import type { Controller } from './controller.ts';
import type { Report } from './plan.ts';

/** `clouds`: by name. `away`: why services cannot serve pools of hosts. */
export function machineService(
  hosts: readonly CloudHost[],
  clouds: ReadonlyMap<string, Pick<OwnedCloud, 'cloud'>>,
  controller: Controller,
  away: ReadonlyMap<string, string | null>,
): MachineService {
  const known = (name: string): CloudHost => {
    const found = hosts.find(({ host }) => host === name);
    if (found !== undefined) return found;
    const names = hosts.map(({ host }) => host);
    throw new OnejobError('E_USAGE', `The config has no host ${JSON.stringify(name)}; ${suggest(name, names)}.`);
  };
  const refusalOf = (host: string): CloudHostView['refused'] => {
    const refusal = controller.refusal(host);
    return refusal === null ? null : toErrorView(refusal);
  };
  const view = ({ host, cloud, min, max, pools }: CloudHost): CloudHostView => ({
    host,
    cloud,
    min,
    max,
    waiting: controller.waiting(host),
    wanted: controller.wanted(host),
    reason: controller.reason(host),
    refused: refusalOf(host),
    held: pools.flatMap(({ name }) => {
      const why = away.get(name) ?? null;
      return why === null ? [] : [`jobs of ${name} are not known: ${why.replace(/\.$/, '')}`];
    }),
    machines: controller
      .machines()
      .filter((machine) => machine.host === host)
      .map((machine) => machineView(machine, controller.nowOf(machine.cloud), controller.reports().get(machine.run) ?? null)),
  });
  return {
    hosts: () => hosts.map(view),
    async up(name, wait, signal) {
      const host = known(name);
      const cloud = clouds.get(host.cloud)?.cloud;
      const isThere = controller.machines().some((machine) => machine.host === name && isWanted(machine));
      if (cloud !== undefined && !isThere) await check(host, cloud, signal);
      controller.up(name, wait);
      return view(host);
    },
    down(name, now) {
      const host = known(name);
      controller.down(name, now);
      return view(host);
    },
    receipts: (limit) => controller.receipts(limit).map((machine) => machineView(machine, controller.nowOf(machine.cloud), null)),
  };
}

/** Lines of an error; "cloud check" shows all. */
const mostLines = 5;

/** Makes nothing. @throws OnejobError E_CLOUD_CHECK, the reason of `signal` */
async function check(host: CloudHost, cloud: Cloud, signal: AbortSignal): Promise<void> {
  const found = await cloud.preflight({ ...host, image: host.image ?? cloud.usualImage }, signal);
  signal.throwIfAborted();
  const errors = found.filter(({ level, mayPass }) => level === 'error' && mayPass !== true);
  if (errors.length === 0) return;
  const lines = errors.map(({ subject, message, hint }) => `  ${subject}: ${message}${hint === null ? '' : ` ${hint}`}`);
  const more = lines.length > mostLines ? [`  and ${lines.length - mostLines} more`] : [];
  const count = errors.length === 1 ? 'one error' : `${errors.length} errors`;
  throw new OnejobError(
    'E_CLOUD_CHECK',
    [
      `Cannot make a machine of ${host.host}: the check of cloud ${host.cloud} found ${count}.`,
      ...lines.slice(0, mostLines),
      ...more,
    ].join('\n'),
    { hint: `Nothing was made. "onejob cloud check ${host.host}" shows everything that it looks at.` },
  );
}

/** `now`: seconds by the clock of its cloud. */
export function machineView(machine: Machine, now: number, report: Report | null): MachineView {
  const { run, host, cloud, offer, state, since, made, born, expires, joinedAt, stage, why, isFailure, end, items } = machine;
  const { registrations } = machine;
  const cost = costOf(machine, now);
  return {
    run,
    host,
    cloud,
    offer,
    state,
    since: since * 1000,
    id: made?.id ?? null,
    place: made?.place ?? null,
    bornAt: born * 1000,
    expiresAt: expires * 1000,
    joinedAt: joinedAt === null ? null : joinedAt * 1000,
    stage,
    why,
    isFailure,
    report: report === null ? null : { busy: report.busy, agents: report.agents, idleFor: report.idleFor, problem: report.problem },
    end,
    items: [...items],
    absentAt: machine.absent.map((at) => at * 1000),
    by: machine.by,
    cost: cost === null ? null : Math.round(cost * 100) / 100,
    perHour: machine.price?.perHour ?? null,
    console: machine.console,
    registrations: registrations === null ? null : shown(registrations),
  };
}

function shown({ removed, left, unknown, clearedAt }: LeftRegistrations): MachineView['registrations'] {
  const at = clearedAt === null ? null : clearedAt * 1000;
  return { removed: [...removed], left: [...left], unknown: [...unknown], clearedAt: at };
}
