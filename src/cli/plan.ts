/** `onejob plan` and `onejob doctor`. */
import { hasCode } from '../errors.ts';
import { withDaemon } from './connect.ts';
import { exitCodes } from './exit.ts';
import type { Session } from './session.ts';
import { hang, plural, printable, titledTable } from './text.ts';

export async function showPlan(session: Session): Promise<number> {
  const { output } = session;
  const [lines, { configChanged }] = await withDaemon(session, (client) => Promise.all([client.plan(), client.status()]));
  await output.result(lines, () => {
    const changed = configChanged === null ? [] : hang('! ', printable(configChanged), output.width).map(output.colors.yellow);
    const rows = lines.map(({ slot, intent, because }) => [slot, intent, printable(because)]);
    const nothing = `Nothing to do: what exists matches the ${configChanged === null ? 'config' : 'loaded config'}.`;
    return [...changed, ...(rows.length === 0 ? [nothing] : titledTable(['SLOT', 'NEXT', 'BECAUSE'], rows, output))];
  });
  return exitCodes.ok;
}

/** 1 when there is an error among the findings. */
export async function showDoctor(session: Session): Promise<number> {
  const { output } = session;
  const findings = await withDaemon(session, (client) => client.doctor()).catch(async (error: unknown) => {
    if (!hasCode(error, 'E_DAEMON_ABSENT')) throw error;
    return (await import('./doctor-alone.ts')).doctorAlone(session, error);
  });
  const code = findings.some((each) => each.level === 'error') ? exitCodes.failed : exitCodes.ok;
  const { colors } = output;
  const marks = { ok: colors.green('ok     '), warning: colors.yellow('warning'), error: colors.red('error  ') };
  const order = { error: 0, warning: 1, ok: 2 };
  const width = output.width ?? 100;
  await output.result(findings, () => {
    const lines = findings
      .toSorted((one, other) => order[one.level] - order[other.level])
      .flatMap(({ level, subject, message, hint }) => {
        const advice = hint === null ? [] : hang(' '.repeat(9), `-> ${printable(hint)}`, width);
        return [...hang(`${marks[level]}  `, printable(`${subject}: ${message}`), width), ...advice];
      });
    const count = (level: 'error' | 'warning') => plural(findings.filter((each) => each.level === level).length, level);
    return [...lines, '', `${count('error')}, ${count('warning')}, ${findings.length} checked.`];
  });
  return code;
}
