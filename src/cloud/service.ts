/** What the API, and a command without a daemon, show and ask of machines in clouds. */
import type { MachineService } from '../api/manager.ts';
import type { CloudHostView, MachineView } from '../api/schema.ts';
import type { CloudHost } from '../config/clouds.ts';
import { suggest } from '../config/problem.ts';
import { OnejobError } from '../errors.ts';
import type { Controller } from './controller.ts';
import { costOf, type LeftRegistrations, type Machine } from './machine.ts';
import type { Report } from './plan.ts';

/** `away`: why services cannot serve pools of hosts. */
export function machineService(
  hosts: readonly CloudHost[],
  controller: Controller,
  away: ReadonlyMap<string, string | null>,
): MachineService {
  const known = (name: string): CloudHost => {
    const found = hosts.find(({ host }) => host === name);
    if (found !== undefined) return found;
    const names = hosts.map(({ host }) => host);
    throw new OnejobError('E_USAGE', `The config has no host ${JSON.stringify(name)}; ${suggest(name, names)}.`);
  };
  const view = ({ host, cloud, min, max, pools }: CloudHost): CloudHostView => ({
    ...{
      host,
      cloud,
      min,
      max,
      waiting: controller.waiting(host),
      wanted: controller.wanted(host),
      reason: controller.reason(host),
    },
    held: pools.flatMap(({ name }) => {
      const why = away.get(name) ?? null;
      return why === null ? [] : [`jobs of ${name} are not known: ${why.replace(/\.$/, '')}`];
    }),
    machines: controller
      .machines()
      .filter((machine) => machine.host === host)
      .map((machine) => viewOf(machine, controller.nowOf(machine.cloud), controller.reports().get(machine.run) ?? null)),
  });
  return {
    hosts: () => hosts.map(view),
    up(name, wait) {
      const host = known(name);
      controller.up(name, wait);
      return view(host);
    },
    down(name, now) {
      const host = known(name);
      controller.down(name, now);
      return view(host);
    },
    receipts: (limit) => controller.receipts(limit).map((machine) => viewOf(machine, controller.nowOf(machine.cloud), null)),
  };
}

/** `now`: seconds by the clock of its cloud. */
export function viewOf(machine: Machine, now: number, report: Report | null): MachineView {
  const { run, host, cloud, offer, state, since, made, born, expires, joinedAt, stage, why, isFailure, end, items } = machine;
  const { registrations } = machine;
  const cost = costOf(machine, now);
  return {
    ...{ run, host, cloud, offer, state, since: since * 1000, id: made?.id ?? null, place: made?.place ?? null },
    ...{
      bornAt: born * 1000,
      expiresAt: expires * 1000,
      joinedAt: joinedAt === null ? null : joinedAt * 1000,
      stage,
      why,
      isFailure,
    },
    report: report === null ? null : { busy: report.busy, agents: report.agents, idleFor: report.idleFor, problem: report.problem },
    ...{ end, items: [...items], absentAt: machine.absent.map((at) => at * 1000), by: machine.by },
    ...{ cost: cost === null ? null : Math.round(cost * 100) / 100, perHour: machine.price?.perHour ?? null },
    console: machine.console,
    registrations: registrations === null ? null : shown(registrations),
  };
}

function shown({ removed, left, unknown, clearedAt }: LeftRegistrations): MachineView['registrations'] {
  const at = clearedAt === null ? null : clearedAt * 1000;
  return { removed: [...removed], left: [...left], unknown: [...unknown], clearedAt: at };
}
