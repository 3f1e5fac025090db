/** `onejob plan` and `onejob doctor`: what would be done, and what is wrong. */
import { OnejobError } from '../errors.ts';
import { withDaemon } from './connect.ts';
import { exitCodes } from './exit.ts';
import type { Session } from './session.ts';
import { hang, plural, printable, table, wrap } from './text.ts';

export async function showPlan(session: Session): Promise<number> {
  const { output } = session;
  const [lines, { configChanged }] = await withDaemon(session, (client) => Promise.all([client.plan(), client.status()]));
  if (output.json) {
    await output.value(lines);
    return exitCodes.ok;
  }
  if (configChanged !== null) await output.print(...hang('! ', printable(configChanged), output.width).map(output.colors.yellow));
  if (lines.length === 0) {
    await output.print(`Nothing to do: what exists matches the ${configChanged === null ? 'config' : 'loaded config'}.`);
    return exitCodes.ok;
  }
  const rows = lines.map(({ slot, intent, because }) => [slot, intent, printable(because)]);
  const [head = '', ...rest] = table([['SLOT', 'NEXT', 'BECAUSE'], ...rows], output.width);
  await output.print(output.colors.dim(head), ...rest);
  return exitCodes.ok;
}

/** 1 when there is an error among the findings. */
export async function showDoctor(session: Session): Promise<number> {
  const { output } = session;
  const findings = await withDaemon(session, (client) => client.doctor()).catch(async (error: unknown) => {
    if (!(error instanceof OnejobError) || error.code !== 'E_DAEMON_ABSENT') throw error;
    return (await import('./doctor-alone.ts')).doctorAlone(session, error);
  });
  const code = findings.some((each) => each.level === 'error') ? exitCodes.failed : exitCodes.ok;
  if (output.json) {
    await output.value(findings);
    return code;
  }
  const { colors } = output;
  const marks = { ok: colors.green('ok     '), warning: colors.yellow('warning'), error: colors.red('error  ') };
  const order = { error: 0, warning: 1, ok: 2 };
  const indent = ' '.repeat(9);
  for (const { level, subject, message, hint } of findings.toSorted((one, other) => order[one.level] - order[other.level])) {
    const [first = '', ...more] = wrap(printable(`${subject}: ${message}`), (output.width ?? 100) - indent.length);
    const advice = hint === null ? [] : wrap(`-> ${printable(hint)}`, (output.width ?? 100) - indent.length);
    await output.print(`${marks[level]}  ${first}`, ...[...more, ...advice].map((line) => indent + line));
  }
  const count = (level: 'error' | 'warning') => plural(findings.filter((each) => each.level === level).length, level);
  await output.print('', `${count('error')}, ${count('warning')}, ${findings.length} checked.`);
  return code;
}
