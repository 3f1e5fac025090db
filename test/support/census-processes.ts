/** Processes that belong to a state directory or an owner, found in /proc: managers, agents, whatever their jobs left. */
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';

export interface SeenProcess {
  readonly pid: number;
  readonly command: string;
  /** Why it is counted. */
  readonly why: string;
}

export interface ProcessFilter {
  /** Absolute; null: any process that carries a mark of onejob's. */
  readonly stateDir: string | null;
  readonly owner: string | null;
}

/** A manager that runs now. */
export interface SeenManager {
  readonly pid: number;
  readonly stateDir: string;
}

/** Variables that every job is given; anyone who inherits one was started by an agent. */
const marks = ['ONEJOB_AGENT_MARK', 'ONEJOB_JOB_ID', 'ONEJOB_POOL'];

/** Who asks is not counted, nor its ancestors, which carry the same arguments; nor processes that only wait to be reaped. */
export function processesOf({ stateDir, owner }: ProcessFilter): SeenProcess[] {
  const mine = new Set(ancestors(process.pid));
  const ownNamespace = link('self', 'ns/mnt');
  // Under a CI system that is onejob itself, everything here carries its mark.
  const inherited = new Set(variables('self').filter((one) => marks.some((mark) => one.startsWith(`${mark}=`))));
  return pids().flatMap((pid): SeenProcess[] => {
    if (mine.has(pid) || state(pid) === 'Z') return [];
    const why = reason(pid);
    return why === null ? [] : [{ pid, command: commandOf(pid), why }];
  });

  function reason(pid: number): string | null {
    const environment = variables(pid);
    if (stateDir === null) {
      const mark = environment.find((one) => marks.some((name) => one.startsWith(`${name}=`)) && !inherited.has(one));
      return mark === undefined ? null : `has ${mark}`;
    }
    if (names(text(pid, 'cmdline'), stateDir)) return 'its arguments name the state directory';
    if (names(link(pid, 'cwd'), stateDir)) return 'works in the state directory';
    if (environment.includes(`ONEJOB_STATE_DIR=${stateDir}`)) return 'was given the state directory';
    if (owner !== null && environment.includes(`ONEJOB_OWNER=${owner}`)) return 'carries the owner';
    if (link(pid, 'ns/mnt') !== ownNamespace && names(text(pid, 'mountinfo'), stateDir)) return 'has the state directory mounted';
    return null;
  }
}

/** Anyone who holds the lock file of a state directory open leads it. */
export function managers(): SeenManager[] {
  return pids().flatMap((pid) => {
    const held = list(`/proc/${pid}/fd`)
      .map((fd) => link(pid, `fd/${fd}`))
      .find((path) => path.endsWith('/lead.db'));
    return held === undefined ? [] : [{ pid, stateDir: held.slice(0, -'/lead.db'.length) }];
  });
}

function names(haystack: string, dir: string): boolean {
  for (let at = haystack.indexOf(dir); at !== -1; at = haystack.indexOf(dir, at + 1)) {
    const next = haystack[at + dir.length];
    if (next === undefined || !/[\w.-]/.test(next)) return true;
  }
  return false;
}

function ancestors(pid: number): number[] {
  const parent = Number(fields(pid)[1] ?? 0);
  return parent > 1 ? [pid, ...ancestors(parent)] : [pid];
}

function state(pid: number): string {
  return fields(pid)[0] ?? 'Z';
}

/** Of /proc/PID/stat, what follows the name: state, parent, …; proc_pid_stat(5). */
function fields(pid: number): string[] {
  const stat = text(pid, 'stat');
  return stat.slice(stat.lastIndexOf(')') + 2).split(' ');
}

function commandOf(pid: number): string {
  const words = text(pid, 'cmdline').split('\0').join(' ').trim();
  return words === '' ? `[${text(pid, 'comm').trim()}]` : words.length > 160 ? `${words.slice(0, 160)}…` : words;
}

function variables(pid: number | 'self'): string[] {
  return text(pid, 'environ').split('\0');
}

function pids(): number[] {
  return list('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(Number);
}

// A process may end, or be another user's, while it is looked at.
function text(pid: number | 'self', file: string): string {
  try {
    return readFileSync(`/proc/${pid}/${file}`, 'utf8');
  } catch {
    return '';
  }
}

function link(pid: number | 'self', file: string): string {
  try {
    return readlinkSync(`/proc/${pid}/${file}`);
  } catch {
    return '';
  }
}

function list(dir: string): string[] {
  try {
    return readdirSync(dir);
  } catch {
    return [];
  }
}
