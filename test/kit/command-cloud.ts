/** A program of a user that is a cloud, in memory and in virtual time, with the adapter that runs it. */
import { openCommand } from '../../src/clouds/command/cloud.ts';
import type { CommandConfig } from '../../src/clouds/command/config.ts';
import type { ProgramEnd, RunProgram } from '../../src/clouds/command/program.ts';
import { jsonOf } from '../../src/system/json.ts';
import { handClock } from './core.ts';

interface Held {
  readonly id: string;
  readonly tags: Readonly<Record<string, string>>;
  readonly userData: string;
  /** By its clock, in seconds. */
  readonly ends: number;
}

/** A request as the page says it: what the test's program reads of it. */
interface Asked {
  readonly version: number;
  readonly verb: string;
  readonly id: string;
  readonly name: string;
  readonly owner: string;
  readonly expires: number;
  readonly user_data: string;
  readonly tags: Record<string, string>;
  readonly secrets: Record<string, string>;
}

const verbs = ['check', 'create', 'end', 'list', 'destroy', 'console'];

export const ended = (code: number, stdout = '', stderr = ''): ProgramEnd => ({
  code,
  why: code === 0 ? null : `it exited with ${code}`,
  isUnstarted: false,
  stdout,
  stderr,
});

export const commandConfig: CommandConfig = {
  name: 'lab',
  type: 'command',
  program: '/etc/onejob/provider',
  options: { remote: 'lab' },
  secrets: {},
  timeout: 60_000,
  deathDate: 'cloud',
  shutdownRemoves: false,
};

interface CommandWorldOptions {
  readonly config?: Partial<CommandConfig>;
  readonly variables?: Readonly<Record<string, string>>;
  /** Answers in place of the program; null: the program does. */
  readonly instead?: (asked: Asked, input: string) => ProgramEnd | null;
}

export function commandWorld({ config = {}, variables = {}, instead = () => null }: CommandWorldOptions = {}) {
  const clock = handClock();
  const machines = new Map<string, Held>();
  const calls: Asked[] = [];
  const consoles = new Map<string, string>();
  const hooks = { console: (_userData: string): string => '' };
  const answer = (asked: Asked): unknown => {
    for (const [id, { ends }] of machines) if (ends * 1000 <= clock.wall()) machines.delete(id);
    switch (asked.verb) {
      case 'create': {
        const id = `vm-${asked.name}`;
        if (!machines.has(id)) {
          machines.set(id, { id, tags: asked.tags, userData: asked.user_data, ends: asked.expires });
          consoles.set(id, hooks.console(asked.user_data));
        }
        return { id };
      }
      case 'end':
        return machines.has(asked.id) ? { ends: asked.expires } : {};
      case 'list':
        return {
          things: [...machines.values()].flatMap(({ id, tags }) =>
            tags['onejob-owner'] === asked.owner ? [{ id, tags, state: 'running' }] : [],
          ),
        };
      case 'destroy':
        machines.delete(asked.id);
        return {};
      case 'console':
        return { text: consoles.get(asked.id) ?? '' };
      default:
        return {};
    }
  };
  const run: RunProgram = async ([, verb], input) => {
    const asked = (jsonOf(input) ?? { verb }) as Asked;
    calls.push(asked);
    const isBad = asked.version !== 1 || !verbs.includes(verb) || (verb === 'destroy' && asked.id === undefined);
    return instead(asked, input) ?? (isBad ? ended(64) : ended(0, JSON.stringify(answer(asked))));
  };
  const parts = { clock, fetch, log: { error() {}, warn() {}, info() {} }, variables, version: '1.2.3' };
  return { clock, machines, calls, hooks, run, parts, cloud: openCommand({ ...commandConfig, ...config }, parts, run) };
}
