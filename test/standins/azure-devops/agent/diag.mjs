/** The agent's own trace, a file per listener and per job, where the real agent keeps it. */
import { appendFileSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';

/** The time as the agent prints it: `2026-08-21 09:30:00Z`. */
export function stamp(date = new Date()) {
  return `${date.toISOString().slice(0, 19).replace('T', ' ')}Z`;
}

/** Begins `Agent_<time>-utc.log` or `Worker_<time>-utc.log` in AGENT_DIAGLOGPATH, else in `<root>/_diag`; gives its line writer. */
export function openTrace(kind, root) {
  const folder = process.env.AGENT_DIAGLOGPATH || join(root, '_diag');
  const time = new Date().toISOString().slice(0, 19).replace(/[-:]/g, '').replace('T', '-');
  const file = join(folder, `${kind}_${time}-utc.log`);
  try {
    mkdirSync(folder, { recursive: true });
    appendFileSync(file, '');
  } catch (error) {
    throw new Error(`Cannot write the log ${file}: ${error.message}`);
  }
  const write = (text) => appendFileSync(file, `[${stamp()} INFO ${kind}] ${text}\n`);
  write(`${kind} started, process ${process.pid}, root ${root}`);
  return write;
}
