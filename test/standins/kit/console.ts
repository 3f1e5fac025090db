/** What a person can type at every stand-in. */
import type { FaultRules, NamedFaults, Where } from './faults.ts';

/** Does what a line says; the answer is for the person. */
export type Command = (words: readonly string[], rest: string) => string | Promise<string>;

export interface ConsoleOptions<Fault, At> {
  readonly help: string;
  /** Where it answers. */
  readonly address: string;
  readonly faults: FaultRules<Fault, At>;
  readonly named: NamedFaults<Fault, At>;
  /** What this service has besides. */
  readonly commands: Readonly<Record<string, Command>>;
}

/** Obeys one line. `quit` is the caller's. */
export async function obeyLine<Fault, At extends Where>(
  { help, address, faults, named, commands }: ConsoleOptions<Fault, At>,
  line: string,
): Promise<string> {
  const [verb = '', ...words] = line.trim().split(/\s+/);
  const rest = line.trim().slice(verb.length).trim();
  switch (verb) {
    case '':
      return '';
    case 'help':
      return help;
    case 'fault':
      return fault(faults, named, words);
    case 'down':
      await faults.down();
      return 'Nobody answers any more. Type "up" to change that.';
    case 'up':
      await faults.up();
      return `Answers again on ${address}.`;
    default:
      return (
        (await (Object.hasOwn(commands, verb) ? commands[verb] : undefined)?.(words, rest)) ??
        `There is no "${verb}" here. Type "help".`
      );
  }
}

/** `fault NAME [METHOD] [ROUTE] [TIMES]`, `fault clear`, or `fault` for the names. */
function fault<Fault, At extends Where>(
  faults: FaultRules<Fault, At>,
  named: NamedFaults<Fault, At>,
  [name, ...words]: readonly string[],
): string {
  if (name === undefined) return Object.keys(named).join('  ');
  if (name === 'clear') {
    faults.clear();
    return 'All is well again.';
  }
  const found = Object.hasOwn(named, name) ? named[name] : undefined;
  if (found === undefined) return `There is no fault "${name}". There are: ${Object.keys(named).join(', ')}.`;
  const times = words.find((word) => /^\d+$/.test(word));
  const method = words.find((word) => /^[A-Z]+$/.test(word));
  const route = words.find((word) => word !== times && word !== method);
  const where = {
    ...found.where,
    ...(times === undefined ? {} : { times: Number(times) }),
    ...(method === undefined ? {} : { method }),
    ...(route === undefined ? {} : { route }),
  } as At;
  faults.add(found.fault, where);
  const often = where.times === undefined ? 'until "fault clear"' : `${where.times} times`;
  return `${name}: ${where.method ?? 'every method'}, ${where.route ?? 'every route'}, ${often}.`;
}
