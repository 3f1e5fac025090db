/** `onejob gpus reserve`, `return`, `quarantine`, `clear` and `forget`, and `onejob proofs`. */
import { userInfo } from 'node:os';
import { z } from 'zod';
import type { DeviceAnswer, DeviceChange, ProofView } from '../api/schema.ts';
import { attempt } from '../errors.ts';
import { formatTime } from '../gpu/processes.ts';
import { withDaemon } from './connect.ts';
import { exitCodes } from './exit.ts';
import type { CliContext, Session } from './session.ts';
import { type Colors, formatAge, hang, plural, printable, titledTable } from './text.ts';

/** `name`: a UUID or its beginning, or the index or PCI address of a GPU. */
export async function changeDevice(session: Session, name: string, change: DeviceChange): Promise<number> {
  const { output } = session;
  const answer = await withDaemon(session, (client) => client.changeDevice(name, change));
  await output.result(answer, () => changeLines(change, answer, Date.now()).map(printable));
  return exitCodes.ok;
}

/** Login name of the person at the prompt, also behind `sudo`; null if there is none. */
export function personOf({ variables }: CliContext): string | null {
  const user = attempt(() => userInfo());
  return user && ((user.uid === 0 ? variables.SUDO_USER : undefined) || user.username || null);
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
      return [changed ? `${uuid} is given back; it is checked before a job gets it.` : `${uuid} is not reserved.`];
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

/** `device`: a UUID or its beginning, or the index or PCI address of a GPU; null: all. `limit`: only the newest. */
export async function listProofs(session: Session, device: string | null, limit: number): Promise<number> {
  const { output } = session;
  const newest = await withDaemon(session, (client) => client.proofs({ device, limit }));
  const proofs = newest.toReversed();
  const lines = () => proofTable(proofs, output.colors, output.width, Date.now());
  await output.list(proofs, 'No proofs yet: onejob makes one after each agent that had devices.', lines);
  return exitCodes.ok;
}

/** The newest last. In a pipe each line says all; at a terminal the findings are below their line. `now`: wall clock, ms. */
export function proofTable(proofs: readonly ProofView[], colors: Colors, width: number | null, now: number): string[] {
  const rows = proofs.map((proof) => [
    `${formatAge(now - proof.at)} ago`,
    printable(proof.device),
    paint(proof.verdict, colors)(printable(proof.verdict)),
    duration(proof.took),
    printable(proof.slot),
    printable(proof.agent),
    ...(width === null ? [found(proof)] : []),
  ]);
  const titles = ['WHEN', 'DEVICE', 'VERDICT', 'TOOK', 'SLOT', 'AFTER', ...(width === null ? ['FOUND'] : [])];
  const [head = '', ...lines] = titledTable(titles, rows, { colors, width });
  const below = (proof: ProofView | undefined) =>
    width === null || proof === undefined || proof.verdict === 'clean' ? [] : hang('    ', found(proof), width);
  return [head, ...lines.flatMap((line, at) => [line, ...below(proofs[at])])];
}

/** The parts of the evidence that are shown. */
const evidence = z.object({
  message: z.string().nullable().catch(null),
  checks: z.array(z.object({ check: z.string(), result: z.string() })).catch([]),
});

/** The reason for the verdict, or how many checks passed and what the device or host did not report. */
function found(proof: ProofView): string {
  const said = evidence.safeParse(proof.evidence);
  if (!said.success) return '';
  const { message, checks } = said.data;
  if (message !== null) return printable(message);
  const silent = checks.filter(({ result }) => result === 'unchecked').map(({ check }) => check);
  const well = checks.filter(({ result }) => result === 'ok').length;
  return printable(`${plural(well, 'check')} passed${silent.length === 0 ? '' : `, not reported: ${silent.join(', ')}`}`);
}

function paint(verdict: string, colors: Colors): (text: string) => string {
  if (verdict === 'clean') return colors.green;
  return verdict === 'dirty' || verdict === 'host' ? colors.red : colors.yellow;
}

/** `0.3s`: most proofs take less than a second. */
function duration(ms: number): string {
  return ms < 10_000 ? `${(ms / 1000).toFixed(1)}s` : formatAge(ms);
}
