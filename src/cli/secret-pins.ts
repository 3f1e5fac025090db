/** `onejob secret pins`, `allow` and `forget`: which pipelines may use a value of the old format, on the daemon of this host. */
import type { PinnedView } from '../api/secret-schema.ts';
import { OnejobError } from '../errors.ts';
import { formatTime } from '../gpu/processes.ts';
import { fingerprintOf, formatOf } from '../secrets/open.ts';
import { listPipelines } from '../secrets/pipelines.ts';
import { withDaemon } from './connect.ts';
import { exitCodes } from './exit.ts';
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
    throw new OnejobError('E_USAGE', '--pipeline is missing: it says which pipeline may use the value.', {
      hint: 'Name it, such as --pipeline acme/solver.',
    });
  }
  const { output } = session;
  const asked = await chosen(session, fingerprint, flags);
  const pin = await withDaemon(session, async ({ secrets }) => secrets.allow(asked, pipelines));
  if (output.json) await output.value(pin);
  else await output.print(`${pin.fingerprint} may be used by ${listPipelines(pin.pipelines.map((each) => each.pipeline))}.`);
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
  if (output.json) await output.value({ fingerprint: asked, forgotten });
  else if (forgotten === 0)
    await output.print(`${asked} is not pinned to ${pipelines.length === 0 ? 'anything' : listPipelines(pipelines)}.`);
  else if (pipelines.length === 0) await output.print(`${asked} is forgotten: the next pipeline that uses it becomes its owner.`);
  else await output.print(`${asked} is no longer for ${listPipelines(pipelines)}.`);
  return exitCodes.ok;
}

async function chosen(session: Session, fingerprint: string | null, flags: PinFlags): Promise<string> {
  if (flags.valueFromStdin === true && fingerprint !== null) {
    throw new OnejobError('E_USAGE', 'A fingerprint and --value-from-stdin exclude each other.');
  }
  if (flags.valueFromStdin !== true) {
    if (fingerprint !== null && /^[0-9a-f]{8,32}$/.test(fingerprint)) return fingerprint;
    throw new OnejobError('E_USAGE', fingerprint === null ? 'The value is missing.' : whyNone(fingerprint), {
      hint: 'Give its fingerprint from "onejob secret pins", or the encrypted value with --value-from-stdin.',
    });
  }
  const text = encryptedIn((await readInput(session)).toString('latin1'));
  const format = formatOf(text);
  if (format === 'sealed') {
    throw new OnejobError('E_USAGE', 'The value itself says which pipelines it is for, so no other pipeline can be allowed.', {
      hint: 'Encrypt it again with another --pipeline.',
    });
  }
  if (format !== null) return fingerprintOf(text);
  throw new OnejobError('E_USAGE', 'There is no encrypted value on standard input, or it is damaged.');
}

function whyNone(typed: string): string {
  if (/^[0-9a-f]{1,7}$/.test(typed)) return `A fingerprint needs at least 8 digits; got ${typed.length}.`;
  return 'Invalid fingerprint: it must have 8 to 32 digits, 0 to 9 and a to f.';
}

/** A value and, below, who may use it. `now`: wall clock, ms. */
function pinLines({ fingerprint, name, pipelines }: PinnedView, now: number): string[] {
  return [
    `${fingerprint}${name === null ? '' : `  SECRET_${name}`}`,
    ...pipelines.map(
      ({ pipeline, origin, at }) => `  ${pipeline}  ${origin === 'used' ? 'used it first' : 'was allowed'}, ${formatTime(at, now)}`,
    ),
  ];
}
