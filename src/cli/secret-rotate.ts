/** `onejob secret rotate`: the same text with each encrypted value made anew for another key. */
import { OnejobError } from '../errors.ts';
import { formatOf } from '../secrets/open.ts';
import { alreadyThere, type Rotation, replaceSecrets, rotateSecret } from '../secrets/rotate.ts';
import { looksSealed } from '../secrets/sealed-format.ts';
import { exitCodes } from './exit.ts';
import { checkName, isTyped, keyFor, type PipelineFlags, pipelinesOf, privateKeys, publicKeys, readInput } from './secret-input.ts';
import type { Session } from './session.ts';

export interface RotateFlags extends PipelineFlags {
  readonly key: string;
  readonly to: string;
  readonly name?: string;
  readonly seedFormat?: boolean;
}

interface Left {
  readonly line: number;
  readonly variable: string | null;
  readonly why: string;
}

/** 1 when a value stayed that should not have; the text is printed all the same. */
export async function rotate(session: Session, flags: RotateFlags): Promise<number> {
  const { output } = session;
  const pipelines = pipelinesOf(flags);
  const name = flags.name === undefined ? null : checkName(flags.name);
  const to = keyFor(await publicKeys(session, flags.to, '--to'), flags.seedFormat === true);
  const from = await privateKeys(session, flags.key);
  if (isTyped(session)) {
    throw new OnejobError('E_USAGE', 'There is nothing on standard input.', {
      hint: 'Give the text there: "onejob secret rotate … <pipeline.yml >new.yml".',
    });
  }
  // Every byte is a character of its own here, so that all come out as they went in.
  const given = (await readInput(session)).toString('latin1');
  const { text, replaced, already, left } = await rotated(given, { from, to, pipelines }, name);
  if (output.json) await output.value({ text: Buffer.from(text, 'latin1').toString('utf8'), replaced, already, left });
  else {
    await output.write('stdout', Buffer.from(text, 'latin1'));
    for (const { line, variable, why } of left) output.say(`line ${line}: ${variable ?? 'the value'} ${why}; it was left as it is`);
    const had = already === 0 ? '' : `, ${already} for the new key already`;
    output.say(`${replaced} ${replaced === 1 ? 'value' : 'values'} encrypted anew${had}, ${left.length} left`);
  }
  return left.length === 0 ? exitCodes.ok : exitCodes.failed;
}

async function rotated(
  given: string,
  rotation: Rotation,
  name: string | null,
): Promise<{ text: string; replaced: number; already: number; left: Left[] }> {
  const alone = given.trim();
  if (formatOf(alone) !== null || looksSealed(alone)) {
    const found = await rotateSecret(rotation, { name, text: alone });
    if ('text' in found) return { text: given.replace(alone, () => found.text), replaced: 1, already: 0, left: [] };
    const isThere = found.stays === alreadyThere;
    return {
      text: given,
      replaced: 0,
      already: isThere ? 1 : 0,
      left: isThere ? [] : [{ line: 1, variable: null, why: found.stays }],
    };
  }
  const { text, replaced, stayed } = await replaceSecrets(given, (secret) => rotateSecret(rotation, secret));
  const left = stayed
    .filter(({ why }) => why !== alreadyThere)
    .map((each) => ({ line: each.line, variable: `SECRET_${each.name}`, why: each.why }));
  return { text, replaced: replaced.length, already: stayed.length - left.length, left };
}
