/**
 * The census: counts everything onejob may have left on this host. It ends every end-to-end test, and is a command:
 *
 *     npm run census [-- --owner ID] [--state-dir DIR] [--socket PATH] [--engine SOCKET]
 *
 * Without arguments it looks for everybody's. What a manager that runs now holds is listed, and not held against it.
 * Exits 1 when something is there that should not be. Changes nothing.
 */
import { readdirSync, rmdirSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { type EngineThing, engineThings, removeEngineThings } from './census-engine.ts';
import { managers, processesOf } from './census-processes.ts';
import { isSocket, ownerOf, stateThings } from './census-state.ts';
import { machineSocket } from './engine-http.ts';

export interface CensusOptions {
  /** null: taken from the state directory, or everybody's without one. */
  readonly owner?: string | null;
  readonly stateDir?: string | null;
  /** A manager's socket that must be gone. */
  readonly socket?: string | null;
  /** Socket of the Engine; null: the machine's. */
  readonly engine?: string | null;
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
  const owner = options.owner ?? (stateDir === null ? null : ownerOf(stateDir));
  const running = managers().map((one) => ({ ...one, owner: ownerOf(one.stateDir) }));
  const leader = running.find((one) => one.stateDir === stateDir) ?? running.find((one) => owner !== null && one.owner === owner);
  const blind: string[] = [];
  const rows: CensusRow[] = [];

  // A state directory without an owner never made anything; "everybody's" would be other people's.
  const things = stateDir !== null && owner === null ? [] : await engineThings(options.engine ?? machineSocket, owner);
  if (things === null)
    blind.push(`did not look for containers, networks and volumes: no Engine answers on ${options.engine ?? machineSocket}`);
  for (const one of things ?? []) {
    rows.push({ ...one, held: (running.find((manager) => manager.owner === one.owner) ?? null)?.pid ?? null });
  }
  const held = leader?.pid ?? null;
  for (const { pid, command, why } of processesOf({ stateDir, owner })) {
    rows.push({
      kind: 'process',
      id: String(pid),
      detail: `${command} (${why})`,
      owner,
      held: stateDir === null ? anyOf(running) : held,
    });
  }
  for (const path of cgroups(owner)) {
    rows.push({ kind: 'cgroup', id: path, detail: '', owner, held: owner === null ? anyOf(running) : held });
  }
  if (stateDir === null) blind.push('did not look into a state directory: none was named');
  else for (const one of stateThings(stateDir)) rows.push({ ...one, owner, held });
  const socket = options.socket ?? null;
  if (socket !== null && isSocket(socket)) rows.push({ kind: 'socket', id: socket, detail: "the manager's", owner, held });
  return { rows, left: rows.filter((row) => row.held === null), blind };
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
  for (const { kind, id } of left) if (kind === 'cgroup') removeGroup(id);
}

/** A process has no label to see its owner by; while any manager runs it may be that one's. */
function anyOf(running: readonly { readonly pid: number }[]): number | null {
  return running[0]?.pid ?? null;
}

/** Groups whose name is onejob's, in every hierarchy; deep ones are below one of them. */
function cgroups(owner: string | null): string[] {
  return below('/sys/fs/cgroup', 4).filter((path) => {
    const name = path.slice(path.lastIndexOf('/') + 1);
    return owner === null ? name.startsWith('onejob') : path.includes('onejob') && name.includes(owner);
  });
}

function below(dir: string, depth: number): string[] {
  if (depth === 0) return [];
  try {
    const folders = readdirSync(dir, { withFileTypes: true }).filter((entry) => entry.isDirectory());
    return folders.flatMap((entry) => [join(dir, entry.name), ...below(join(dir, entry.name), depth - 1)]);
  } catch {
    // Groups come and go while they are listed.
    return [];
  }
}

function kill(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL');
  } catch {
    // It ended meanwhile.
  }
}

function removeGroup(path: string): void {
  try {
    for (const inner of below(path, 3).reverse()) rmdirSync(inner);
    rmdirSync(path);
  } catch {
    // Still in use by a process that is just dying; the next census says so.
  }
}

if (import.meta.main) {
  const text = { type: 'string' } as const;
  const { values } = parseArgs({ options: { owner: text, 'state-dir': text, socket: text, engine: text } });
  const result = await census({
    owner: values.owner ?? null,
    stateDir: values['state-dir'] ?? process.env.ONEJOB_STATE_DIR ?? null,
    socket: values.socket ?? null,
    engine: values.engine ?? null,
  });
  console.log(renderCensus(result));
  process.exitCode = result.left.length > 0 ? 1 : 0;
}
