/** Names of devices, and texts of the daemon with these names instead of UUIDs. */
import type { Device } from '../views.ts';
import { plain } from './text.ts';

/** By UUID. */
export type Names = ReadonlyMap<string, string>;

/** Names of all devices; `before` if nothing differs. */
export function namesOf(devices: readonly Device[], before: Names = new Map()): Names {
  const names = new Map(devices.map((device) => [device.uuid, deviceName(device, devices)]));
  const isSame = names.size === before.size && [...names].every(([uuid, name]) => before.get(uuid) === name);
  return isSame ? before : names;
}

/** `GPU 3`, `GPU 3 / 1g.10gb`, with a number if it has several such instances, or what there is. */
function deviceName({ index, profile, kind, parent, uuid }: Device, devices: readonly Device[]): string {
  if (kind !== 'mig') return index === null ? plain(uuid) : `GPU ${index}`;
  const gpu = devices.find((one) => one.uuid === parent)?.index ?? null;
  const alike = devices.filter((one) => one.parent === parent && one.profile === profile);
  const number = alike.length < 2 ? '' : ` #${alike.findIndex((one) => one.uuid === uuid) + 1}`;
  return `${gpu === null ? 'MIG' : `GPU ${gpu}`} / ${plain(profile ?? uuid)}${number}`;
}

/** Foreign text in one line, in which devices have their names. */
export function named(text: string, names: Names): string {
  let found = text;
  for (const [uuid, name] of names) if (found.includes(uuid)) found = found.replaceAll(uuid, name);
  return plain(found);
}

/** Why no job gets a device, without what its state says already, and without its full stop; null if one may. */
export function deviceReason({ why }: Pick<Device, 'why'>, names: Names): string | null {
  return why === null
    ? null
    : named(why, names)
        .replace(/^[^:]{1,80} is in quarantine: /, '')
        .replace(/\.$/, '');
}
