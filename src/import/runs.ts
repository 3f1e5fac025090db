/** Agents that only differ by number, as one pool: names that count without a gap, and the same in all else. Pure. */
import { isDeepStrictEqual } from 'node:util';
import type { Agent, PlainMap } from './agent.ts';
import { devicesKey } from './devices.ts';

/** Agents of one pool, in the order of its slots. */
export interface Run {
  readonly agents: readonly Agent[];
  /** Name template of the pool. */
  readonly name: string;
  /** As many slots as agents, unless one agent stands for several. */
  readonly slots: number;
}

/** `gpu-{1..}`: what stands before and behind the number, and where it begins. */
interface Shape {
  readonly before: string;
  readonly after: string;
  readonly first: number;
}

/** Each number in a name is one it may count by. A leading zero is no part of a number: `{1..}` would lose it. */
function shapesOf(name: string): Shape[] {
  return [...name.matchAll(/\d+/g)].flatMap((found) => {
    const zeros = /^0*(?=\d)/.exec(found[0])?.[0].length ?? 0;
    const at = found.index + zeros;
    const digits = found[0].slice(zeros);
    if (digits.length > 6) return [];
    return [{ before: name.slice(0, at), after: name.slice(at + digits.length), first: Number(digits) }];
  });
}

/** What agents of one pool have in common. */
function likeness({ keys, devices, endpoint, tokenFile }: Agent): PlainMap {
  return { keys, devices: devicesKey(devices), by: devices.by, endpoint: endpoint ?? '', token: tokenFile ?? '' };
}

/** In the order given, which is that of the names. `isApart`: never with others in one pool. */
export function runsOf(agents: readonly Agent[], isApart: (agent: Agent) => boolean): Run[] {
  const runs: { agents: Agent[]; shapes: Shape[] }[] = [];
  for (const agent of agents) {
    const isSingle = agent.times > 1 || agent.devices.by === 'all' || isApart(agent);
    const run = runs.at(-1);
    const last = run?.agents.at(-1);
    const shapes = shapesOf(agent.name);
    const going =
      run === undefined ||
      last === undefined ||
      isSingle ||
      last.times > 1 ||
      isApart(last) ||
      !isDeepStrictEqual(likeness(last), likeness(agent))
        ? []
        : run.shapes.filter(({ before, after, first }) =>
            shapes.some((shape) => shape.before === before && shape.after === after && shape.first === first + run.agents.length),
          );
    if (run !== undefined && going.length > 0) {
      run.agents.push(agent);
      run.shapes = going;
    } else runs.push({ agents: [agent], shapes });
  }
  return runs.map(({ agents: of, shapes }) => {
    const [agent] = of;
    const [shape] = shapes;
    if (of.length > 1 && shape !== undefined)
      return { agents: of, name: `${shape.before}{${shape.first}..}${shape.after}`, slots: of.length };
    const name = agent?.name ?? '';
    const times = agent?.times ?? 1;
    return { agents: of, name: times > 1 ? `${stemOf(name)}-{1..}` : name, slots: times };
  });
}

/** What the slots of one agent are called: its name, or that of each copy. */
export function slotNamesOf({ name, times }: Agent): string[] {
  return times > 1 ? Array.from({ length: times }, (_, at) => `${stemOf(name)}-${at + 1}`) : [name];
}

/** Room for the number of a copy, in a name of 63 characters. */
function stemOf(name: string): string {
  return name.slice(0, 58);
}
