/**
 * The census: counts everything onejob may have left on this host. It ends every end-to-end test, and is a command:
 *
 *     npm run census [-- --owner ID] [--state-dir DIR] [--socket PATH] [--engine SOCKET] [--save FILE | --since FILE]
 *
 * Without an owner or a state directory it counts everybody's, and looks into the usual state directory. What a manager that runs now holds is listed, and not held against it.
 * Exits 1 when something is there that should not be. Changes nothing. With `--save` it notes what is there and exits 0;
 * with `--since` it counts only what was not noted then: what an earlier run left, no matter who killed it, is not this one's.
 */
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { readEnvironment } from '../../src/config/environment.ts';
import { choosePaths } from '../../src/config/paths.ts';
import { type EngineThing, engineThings, removeEngineThings } from './census-engine.ts';
import { hostThings, removeCgroup } from './census-host.ts';
import { managers, processesOf } from './census-processes.ts';
import { isSocket, ownerOf, stateThings } from './census-state.ts';
import { machineSocket } from './engine-http.ts';

export interface CensusOptions {
  /** null: taken from the state directory; without one everybody is counted. */
  readonly owner?: string | null;
  readonly stateDir?: string | null;
  /** A manager's socket that must be gone. */
  readonly socket?: string | null;
  /** Socket of the Engine; null: the machine's. */
  readonly engine?: string | null;
  /** Counts everybody's, though a state directory is named. */
  readonly everybody?: boolean;
}

export interface CensusRow {
  readonly kind: string;
  readonly id: string;
  readonly detail: string;
  /** Installation it belongs to, where that can be seen. */
  readonly owner: string | null;
  /** Pid of the running manager that holds it; null: nobody does, so it was left. */
  readonly held: number | null;
}

export interface Census {
  readonly rows: readonly CensusRow[];
  /** What should not be there. */
  readonly left: readonly CensusRow[];
  /** Where it could not look, and why. */
  readonly blind: readonly string[];
}

export async function census(options: CensusOptions = {}): Promise<Census> {
  const stateDir = options.stateDir ?? null;
  const own = options.owner ?? (stateDir === null ? null : ownerOf(stateDir));
  const everybody = options.everybody ?? (own === null && stateDir === null);
  const owner = everybody ? null : own;
  const running = managers().map((one) => ({ pid: one.pid, stateDir: one.stateDir, owner: ownerIfThere(one.stateDir) }));
  const holderOf = (id: string | null): number | null => running.find((one) => id !== null && one.owner === id)?.pid ?? null;
  const leader = running.find((one) => one.stateDir === stateDir)?.pid ?? holderOf(own);
  const blind: string[] = [];
  const rows: CensusRow[] = [];

  // A state directory without an owner never made anything.
  const socket = options.engine ?? machineSocket;
  const things = !everybody && own === null ? [] : await engineThings(socket, owner);
  if (things === null) blind.push(`did not look for containers, networks and volumes: no Engine answers on ${socket}`);
  for (const one of things ?? []) rows.push({ ...one, held: holderOf(one.owner) });
  // A process has no label to see its owner by; while any manager runs it may be that one's.
  const held = everybody ? (running[0]?.pid ?? null) : leader;
  for (const { pid, command, why } of processesOf({ stateDir: everybody ? null : stateDir, owner })) {
    rows.push({ kind: 'process', id: String(pid), detail: `${command} (${why})`, owner, held });
  }
  for (const one of everybody || own !== null ? hostThings(owner, everybody ? null : stateDir) : []) {
    rows.push({ ...one, held: one.owner === null ? held : holderOf(one.owner) });
  }
  if (stateDir === null) blind.push('did not look into a state directory: none was named');
  else for (const one of stateThings(stateDir)) rows.push({ ...one, owner: own, held: leader });
  const its = options.socket ?? null;
  if (its !== null && isSocket(its)) rows.push({ kind: 'socket', id: its, detail: "the manager's", owner: own, held: leader });
  return { rows, left: rows.filter((row) => row.held === null), blind };
}

/** Another's home may be removed while it is looked at. */
function ownerIfThere(stateDir: string): string | null {
  try {
    return ownerOf(stateDir);
  } catch {
    return null;
  }
}

/** Without what an earlier census noted in the file. */
export function without(census: Census, file: string): Census {
  const noted = new Set(JSON.parse(readFileSync(file, 'utf8')) as string[]);
  const isNew = (row: CensusRow): boolean => !noted.has(nameOf(row));
  return { ...census, rows: census.rows.filter(isNew), left: census.left.filter(isNew) };
}

function nameOf({ kind, id }: CensusRow): string {
  return `${kind} ${id}`;
}

/** As a table for people. */
export function renderCensus({ rows, left, blind }: Census): string {
  const lines = rows.map((row) => [
    row.held === null ? 'LEFT' : `held by ${row.held}`,
    row.kind,
    row.id,
    row.owner ?? '',
    row.detail,
  ]);
  const widths = [0, 1, 2, 3].map((column) => Math.max(0, ...lines.map((line) => line[column]?.length ?? 0)));
  return [
    ...lines.map((line) =>
      line
        .map((cell, column) => cell.padEnd(widths[column] ?? 0))
        .join('  ')
        .trimEnd(),
    ),
    ...blind.map((why) => `(${why})`),
    rows.length === 0
      ? 'Nothing of onejob is here.'
      : `${rows.length} things of onejob are here, ${left.length} of them left behind.`,
  ].join('\n');
}

/** Removes what was left, so that one failing test does not fail the next. */
export async function cleanUp({ left }: Census, engine: string | null = null): Promise<void> {
  for (const { kind, id } of left) if (kind === 'process') kill(Number(id));
  const things = left.filter((row): row is CensusRow & EngineThing => ['container', 'network', 'volume'].includes(row.kind));
  if (things.length > 0) await removeEngineThings(engine ?? machineSocket, things);
  for (const { kind, id } of left) if (kind === 'cgroup') removeCgroup(id);
  for (const { kind, id } of left) if (kind === 'user' || kind === 'file') rmSync(id, { recursive: true, force: true });
}

function kill(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL');
  } catch {
    // It ended meanwhile.
  }
}

if (import.meta.main) {
  const text = { type: 'string' } as const;
  const { values } = parseArgs({
    options: { owner: text, 'state-dir': text, socket: text, engine: text, save: text, since: text },
  });
  const flags = { stateDir: values['state-dir'], socket: values.socket };
  const { stateDir, socket } = choosePaths(flags, readEnvironment(), process.cwd(), { stateDir: null, socket: null });
  const found = await census({
    owner: values.owner ?? null,
    stateDir: values.owner !== undefined && flags.stateDir === undefined ? null : stateDir.path,
    socket: socket.path,
    engine: values.engine ?? null,
    everybody: values.owner === undefined && flags.stateDir === undefined,
  });
  const result = values.since === undefined ? found : without(found, values.since);
  if (values.save !== undefined) writeFileSync(values.save, JSON.stringify(result.rows.map(nameOf)));
  console.log(renderCensus(result));
  process.exitCode = values.save === undefined && result.left.length > 0 ? 1 : 0;
}
