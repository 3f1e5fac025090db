/** `onejob gpus reserve`, `return`, `quarantine`, `clear` and `forget`: what a person does with a device. */
import { userInfo } from 'node:os';
import type { DeviceAnswer, DeviceChange } from '../api/device-schema.ts';
import { formatTime } from '../gpu/processes.ts';
import { printable } from './color.ts';
import { withDaemon } from './connect.ts';
import type { CliContext } from './context.ts';
import { exitCodes } from './exit.ts';
import type { Session } from './session.ts';

/** `name`: a UUID or its beginning, or the index or PCI address of a GPU. */
export async function changeDevice(session: Session, name: string, change: DeviceChange): Promise<number> {
  const { output } = session;
  const answer = await withDaemon(session, (client) => client.changeDevice(name, change));
  if (output.json) await output.value(answer);
  else await output.print(...changeLines(change, answer, Date.now()).map(printable));
  return exitCodes.ok;
}

/** Login name of the person at the prompt, also behind `sudo`; null where it has none. */
export function personOf({ variables }: CliContext): string | null {
  try {
    const { uid, username } = userInfo();
    return (uid === 0 ? variables.SUDO_USER : undefined) || username || null;
  } catch {
    // Of a number that is in no user database there is no name.
    return null;
  }
}

/** What was done, for a person. `now`: wall clock, ms. */
export function changeLines({ act }: DeviceChange, { uuid, changed, device }: DeviceAnswer, now: number): string[] {
  const busy = (device?.agents.length ?? 0) > 0 ? '; the job that runs on it ends first' : '';
  switch (act) {
    case 'reserve': {
      const until = device?.until ?? null;
      const end = until === null ? 'until you return it' : `until ${formatTime(until, now)} (or until you return it)`;
      const other = device?.state === 'quarantined' && device.why !== null ? [`But ${device.why}`] : [];
      return [`${uuid} is yours ${end}${busy}.`, ...other, `Give it back with "onejob gpus return ${uuid}".`];
    }
    case 'return':
      return [changed ? `${uuid} is given back; it is looked at before a job gets it.` : `${uuid} is not reserved.`];
    case 'quarantine':
      return [`${uuid} is in quarantine until you type "onejob gpus clear ${uuid}"${busy}.`];
    case 'clear': {
      if (!changed) return [`${uuid} is not in quarantine.`];
      const other = device !== null && device.state !== 'free' && device.state !== 'leased' && device.why !== null;
      return [`${uuid} is out of quarantine${other ? `; but ${device.why}` : ''}.`];
    }
    case 'forget':
      return [`${uuid} is forgotten.`];
  }
}
