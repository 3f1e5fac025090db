/** `onejob report`: one archive for a bug report. It lists what is in it, and what is not, before it is written. */
import { closeSync, fsyncSync, openSync, rmSync, writeFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { gzipSync } from 'node:zlib';
import { pack } from 'tar-stream';
import { attempt, codeOf, OnejobError } from '../base/errors.ts';
import { formatBytes } from '../base/units.ts';
import { systemClock } from '../system/system-clock.ts';
import { askFor, isAsked } from './ask-before-ending.ts';
import { exitCodes } from './exit.ts';
import { personOf } from './gpus.ts';
import { unlessInterrupted } from './init/ask.ts';
import { collectReport, type Report, type ReportPart } from './report/parts.ts';
import { createPublicWords } from './report/public-words.ts';
import type { Session } from './session.ts';
import { titledTable } from './text.ts';

export interface ReportFlags {
  readonly output?: string;
  readonly yes?: boolean;
}

/** 1 when nothing was written. `named`: jobs, agents and slots. */
export async function makeReport(
  session: Session,
  named: readonly string[],
  { output: file, yes = false }: ReportFlags,
): Promise<number> {
  const { output, context } = session;
  const words = createPublicWords();
  const person = personOf(context);
  if (person !== null && person !== 'root') words.hide(person);
  const report = await collectReport(session, named, words);
  const listed = [{ file: 'README.txt', what: 'this list', text: readme(report) }, ...report.parts];
  const when = new Date(systemClock.wall()).toISOString().slice(0, 19).replaceAll(':', '-');
  const path = resolve(context.cwd, file ?? `onejob-report-${when}.tar.gz`);
  const write = async () => writeArchive(path, await archiveOf(listed));
  if (output.json) {
    if (yes) await write();
    const files = listed.map(({ file: name, what, text }) => ({ file: name, what, bytes: Buffer.byteLength(text) }));
    await output.value({ files, leftOut: report.leftOut, hidden: words.hidden(), written: yes ? path : null });
    return exitCodes.ok;
  }
  const rows = listed.map(({ file: name, what, text }) => ({ FILE: name, SIZE: formatBytes(Buffer.byteLength(text)), WHAT: what }));
  await output.print(
    ...titledTable(rows, { colors: output.colors, width: output.width }),
    '',
    'Left out:',
    ...report.leftOut.map(({ what, why }) => `  ${what}: ${why}`),
  );
  return unlessInterrupted(output, async () => {
    const wanted =
      yes ||
      (isAsked(session) &&
        (await askFor(session, { text: `Write it to ${path}?`, words: ['no', 'yes'], command: 'report' })) === 'yes');
    if (!wanted) {
      output.say(yes || isAsked(session) ? 'nothing was written' : 'nothing was written; add --yes to write the archive');
      return exitCodes.failed;
    }
    await write();
    output.say(`wrote ${path}; nothing was sent to anybody. Read it before you attach it to a bug report: tar -xOzf FILE`);
    return exitCodes.ok;
  });
}

function readme({ parts, leftOut }: Report): string {
  return [
    'A report of onejob, for a bug report. It was made by "onejob report".',
    '',
    ...parts.map(({ file, what }) => `${file}: ${what}`),
    '',
    'Left out:',
    ...leftOut.map(({ what, why }) => `${what}: ${why}`),
    '',
  ].join('\n');
}

async function archiveOf(files: readonly ReportPart[]): Promise<Buffer> {
  const archive = pack();
  const bytes = buffer(archive);
  // Nothing of this host: no owner, and no time but the one in the name.
  for (const { file, text } of files) archive.entry({ name: `onejob-report/${file}`, mode: 0o644, mtime: new Date(0) }, text);
  archive.finalize();
  return gzipSync(await bytes);
}

/** For one user, and never over a file that exists. @throws OnejobError E_OUTPUT */
function writeArchive(path: string, bytes: Buffer): void {
  let isMine = false;
  try {
    const file = openSync(path, 'wx', 0o600);
    isMine = true;
    try {
      writeFileSync(file, bytes);
      fsyncSync(file);
    } finally {
      closeSync(file);
    }
  } catch (cause) {
    if (isMine) attempt(() => rmSync(path));
    const why = codeOf(cause) === 'EEXIST' ? 'the file exists' : codeOf(cause);
    throw new OnejobError('E_OUTPUT', `Cannot write ${path}: ${why}.`, { hint: 'Name another file with --output FILE.', cause });
  }
}
