/** `onejob proofs`: how devices were found between two agents. */
import { z } from 'zod';
import type { ProofView } from '../api/device-schema.ts';
import { type Colors, printable } from './color.ts';
import { withDaemon } from './connect.ts';
import { exitCodes } from './exit.ts';
import type { Session } from './session.ts';
import { hang, table } from './table.ts';
import { formatAge } from './units.ts';

/** `device`: a UUID or its beginning, or the index or PCI address of a GPU; null: all. `limit`: the newest ones. */
export async function listProofs(session: Session, device: string | null, limit: number): Promise<number> {
  const { output } = session;
  const newest = await withDaemon(session, (client) => client.proofs({ device, limit }));
  const proofs = newest.toReversed();
  if (output.json) for (const proof of proofs) await output.value(proof);
  else if (proofs.length === 0) await output.print('No proofs yet: there is one after each agent that had devices.');
  else await output.print(...proofTable(proofs, output.colors, output.width, Date.now()));
  return exitCodes.ok;
}

/** The newest last. In a pipe each line says all; at a terminal what was found stands below, whole. `now`: wall clock, ms. */
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
  const [head = '', ...lines] = table([titles, ...rows], width);
  const below = (proof: ProofView | undefined) =>
    width === null || proof === undefined || proof.verdict === 'clean' ? [] : hang('    ', found(proof), width);
  return [colors.dim(head), ...lines.flatMap((line, at) => [line, ...below(proofs[at])])];
}

/** Of all that the evidence says, what tells the rest apart. */
const evidence = z.object({
  message: z.string().nullable().catch(null),
  checks: z.array(z.object({ check: z.string(), result: z.string() })).catch([]),
});

/** Why the verdict was so, else how many checks there were and what the device or the host did not tell. */
function found(proof: ProofView): string {
  const said = evidence.safeParse(proof.evidence);
  if (!said.success) return '';
  const { message, checks } = said.data;
  if (message !== null) return printable(message);
  const silent = checks.filter(({ result }) => result === 'unchecked').map(({ check }) => check);
  const well = checks.filter(({ result }) => result === 'ok').length;
  return printable(`${well} check${well === 1 ? '' : 's'} well${silent.length === 0 ? '' : `, not told: ${silent.join(', ')}`}`);
}

function paint(verdict: string, colors: Colors): (text: string) => string {
  if (verdict === 'clean') return colors.green;
  return verdict === 'dirty' || verdict === 'host' ? colors.red : colors.yellow;
}

/** `0.3s`: most proofs take less than a second. */
function duration(ms: number): string {
  return ms < 10_000 ? `${(ms / 1000).toFixed(1)}s` : formatAge(ms);
}
