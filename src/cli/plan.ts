/**
 * `onejob plan`: what the daemon will do next. With `--inventory`: the agents and devices of a config on a recorded host, which needs
 * neither a daemon nor that host.
 */

import { resolve } from 'node:path';
import type { PoolConfig } from '../config/config.ts';
import { choiceFindings } from '../config/device-findings.ts';
import { loadConfig } from '../config/load.ts';
import type { Device } from '../gpu/inventory.ts';
import { readRecording } from '../gpu/recording.ts';
import { partition } from '../manager/devices/partition.ts';
import { slotNames } from '../schema/template.ts';
import { connect } from './connect.ts';
import { exitCodes } from './exit.ts';
import { configSource, type Session } from './session.ts';
import { hang, printable, titledTable } from './text.ts';
import { types } from './types.ts';

export async function showPlan(session: Session): Promise<number> {
  const { output } = session;
  using connection = await connect(session, { start: false, named: true });
  const { client } = connection;
  const [lines, { configChanged }] = await Promise.all([client.call('GET /v1/plan'), client.status()]);
  await output.result(lines, () => {
    const changed = configChanged === null ? [] : hang('! ', printable(configChanged), output.width).map(output.colors.yellow);
    const rows = lines.map(({ slot, intent, because }) => ({ SLOT: slot, NEXT: intent, BECAUSE: printable(because) }));
    const nothing = `Nothing to do: what exists matches the ${configChanged === null ? 'config' : 'loaded config'}.`;
    return [...changed, ...(rows.length === 0 ? [nothing] : titledTable(rows, output))];
  });
  return exitCodes.ok;
}

/** 1 when an agent would not have the devices it asks for. @throws OnejobError E_CONFIG; E_USAGE for a missing recording */
export async function planInventory(session: Session, recording: string): Promise<number> {
  const { context, output } = session;
  const inventory = await readRecording(resolve(context.cwd, recording));
  const { config } = await loadConfig({ types, ...configSource(session), look: null, gpus: inventory.devices.length > 0 });
  const agents = plannedAgents(config, inventory.devices);
  const findings = choiceFindings(config, inventory);
  const isWell = agents.every(({ lacks }) => !lacks) && findings.every(({ level }) => level !== 'error');
  const code = isWell ? exitCodes.ok : exitCodes.failed;
  if (output.json) {
    await output.value({ host: config.host, complete: inventory.complete, agents, findings, recording: inventory.findings });
    return code;
  }
  const rows = agents.flatMap(({ slot, agent, queue, devices, lacks }) => {
    const [first, ...more] = devices.map(({ uuid, model }) => printable(`${uuid}  ${model}`));
    const shown = first ?? (lacks ? 'none: see below' : '-');
    const below = more.map((device) => ({ SLOT: '', AGENT: '', QUEUE: '', DEVICES: device }));
    return [{ SLOT: slot, AGENT: agent, QUEUE: printable(queue), DEVICES: shown }, ...below];
  });
  await output.print(...(rows.length === 0 ? ['No agents.'] : titledTable(rows, output)));
  if (!inventory.complete)
    output.say('the recording may not contain all devices of its host, so devices that are missing here may exist there');
  for (const { level, subject, message, hint } of [...inventory.findings, ...findings]) {
    output.say(`${level}: ${subject}: ${message}${hint === null ? '' : ` -> ${hint}`}`);
  }
  return code;
}

/**
 * All agents of a config, with the devices that they would get on a host where nothing is leased yet. `lacks`: it asks for devices
 * and gets none.
 */
export function plannedAgents(
  config: { readonly pools: readonly PoolConfig[]; readonly host: string },
  devices: readonly Device[],
) {
  const asking = config.pools.filter((pool) => pool.devices.count !== 0 && pool.agents !== 0);
  // A pool without standbys leases devices only for a job: here it shows what it could have.
  const { slots } = partition({
    pools: asking.map((pool) => ({ ...pool, standby: true })),
    devices,
    leases: [],
    inUse: new Set(),
    barred: new Set(),
    occupied: new Set(),
    demands: [],
    near: () => 0,
    endOf: () => ({ until: null, job: null, isSure: false }),
    lineOf: () => [],
    now: 0,
  });
  const nameOf = slotNames(config);
  const models = new Map(devices.map(({ uuid, model }) => [uuid, model]));
  return config.pools.flatMap((pool) => {
    const mine = slots.filter((slot) => slot.pool === pool.name);
    const wanted = pool.agents === 'per-device' ? mine.length : pool.agents;
    return Array.from({ length: wanted }, (_, at) => {
      const key = `${pool.name}/${at + 1}`;
      const held = mine.find((slot) => slot.key === key)?.devices ?? [];
      const { service, queue, priority, tags } = pool;
      const shown = held.map(({ uuid }) => ({ uuid, model: models.get(uuid) ?? '' }));
      const lacks = pool.devices.count !== 0 && held.length === 0;
      return { slot: key, agent: nameOf(key), service, queue, priority, tags, devices: shown, lacks };
    });
  });
}
