/** `onejob secret pins`, `allow` and `forget`: which pipelines may use a value in the old format, for the daemon of this host. */
import type { PinnedView } from '../api/schema.ts';
import { formatTime } from '../gpu/processes.ts';
import { fingerprintOf, formatOf } from '../secrets/open.ts';
import { listPipelines } from '../secrets/pipelines.ts';
import { withDaemon } from './connect.ts';
import { exitCodes, wrongUsage } from './exit.ts';
import { encryptedIn, type PipelineFlags, pipelinesOf, readInput } from './secret-input.ts';
import type { Session } from './session.ts';
import { printable } from './text.ts';

export interface PinFlags extends PipelineFlags {
  readonly valueFromStdin?: boolean;
}

export async function listPins(session: Session): Promise<number> {
  const { output } = session;
  const pins = await withDaemon(session, async ({ secrets }) => secrets.pins());
  if (output.json) for (const pin of pins) await output.value(pin);
  else if (pins.length === 0) output.say('no value in the old format has been used yet');
  else await output.print(...pins.flatMap((pin) => pinLines(pin, Date.now())).map(printable));
  return exitCodes.ok;
}

export async function allow(session: Session, fingerprint: string | null, flags: PinFlags): Promise<number> {
  const pipelines = pipelinesOf(flags);
  if (pipelines.length === 0) {
    const message = '--pipeline is missing: it says which pipeline may use the value.';
    throw wrongUsage(message, 'Name it, such as --pipeline acme/solver.');
  }
  const { output } = session;
  const asked = await chosen(session, fingerprint, flags);
  const pin = await withDaemon(session, async ({ secrets }) => secrets.allow(asked, pipelines));
  const names = listPipelines(pin.pipelines.map((each) => each.pipeline));
  await output.result(pin, () => [`${pin.fingerprint} may be used by ${names}.`]);
  return exitCodes.ok;
}

export async function forget(session: Session, fingerprint: string | null, flags: PinFlags): Promise<number> {
  const pipelines = pipelinesOf(flags);
  const { output } = session;
  const asked = await chosen(session, fingerprint, flags);
  const forgotten = await withDaemon(session, async ({ secrets }) => {
    let count = 0;
    for (const each of pipelines.length === 0 ? [null] : pipelines) count += (await secrets.forget(asked, each)).forgotten;
    return count;
  });
  await output.result({ fingerprint: asked, forgotten }, () => {
    if (forgotten === 0) return [`${asked} is not pinned to ${pipelines.length === 0 ? 'anything' : listPipelines(pipelines)}.`];
    if (pipelines.length === 0) return [`${asked} is forgotten: the next pipeline that uses it becomes its owner.`];
    return [`${asked} is no longer for ${listPipelines(pipelines)}.`];
  });
  return exitCodes.ok;
}

async function chosen(session: Session, fingerprint: string | null, flags: PinFlags): Promise<string> {
  if (flags.valueFromStdin === true && fingerprint !== null) {
    throw wrongUsage('A fingerprint and --value-from-stdin exclude each other.');
  }
  if (flags.valueFromStdin !== true) {
    if (fingerprint !== null && /^[0-9a-f]{8,32}$/.test(fingerprint)) return fingerprint;
    const hint = 'Give its fingerprint from "onejob secret pins", or the encrypted value with --value-from-stdin.';
    throw wrongUsage(fingerprint === null ? 'The value is missing.' : whyInvalid(fingerprint), hint);
  }
  const text = encryptedIn((await readInput(session)).toString('latin1'));
  const format = formatOf(text);
  if (format === 'sealed') {
    const message = 'The value itself says which pipelines it is for, so no other pipeline can be allowed.';
    throw wrongUsage(message, 'Encrypt it again with another --pipeline.');
  }
  if (format !== null) return fingerprintOf(text);
  throw wrongUsage('There is no encrypted value on standard input, or it is damaged.');
}

function whyInvalid(typed: string): string {
  if (/^[0-9a-f]{1,7}$/.test(typed)) return `A fingerprint needs at least 8 digits; got ${typed.length}.`;
  return 'Invalid fingerprint: it must have 8 to 32 digits, 0 to 9 and a to f.';
}

/** A value, and below it who may use it. `now`: wall clock, ms. */
function pinLines({ fingerprint, name, pipelines }: PinnedView, now: number): string[] {
  return [
    `${fingerprint}${name === null ? '' : `  SECRET_${name}`}`,
    ...pipelines.map(
      ({ pipeline, origin, at }) => `  ${pipeline}  ${origin === 'used' ? 'used it first' : 'was allowed'}, ${formatTime(at, now)}`,
    ),
  ];
}
