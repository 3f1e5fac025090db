/**
 * Which config the service reads, by what it really runs with: drop-ins and the environment of the service manager decide it, too.
 * Where that cannot be known, it is an error: an upgrade without the check that the config asks for would be worse than none.
 */
import { readFileSync, readlinkSync } from 'node:fs';
import { basename } from 'node:path';
import { attempt, OnejobError } from '../base/errors.ts';
import { type Environment, readEnvironment } from '../config/environment.ts';

export interface ConfigOrigin {
  readonly flags: { readonly config?: string };
  readonly env: Environment;
  readonly cwd: string;
}

/** What systemd says about the service. */
export interface ServiceFacts {
  /** null: it does not run. */
  readonly pid: number | null;
  /** Its unit with all drop-ins, one after the other; empty for a service without a unit. */
  readonly unit: string;
  /** The environment that all services of this service manager get, `NAME=VALUE` by line. */
  readonly environment: string;
}

const unknown = (why: string) =>
  new OnejobError(
    'E_SERVICE',
    `Cannot know which config the service reads, and that may say which key archives are signed with: ${why}.`,
    {
      hint: 'Nothing was changed. Name the config of the service with --config.',
    },
  );

/** `env`: that of the caller, who may be another user than the service. @throws OnejobError E_SERVICE */
export function sourceOfService({ pid, unit, environment }: ServiceFacts, env: Environment, proc = '/proc'): ConfigOrigin {
  if (pid !== null) return sourceOfProcess(pid, env, proc);
  const config = configOfUnit(unit, environment);
  // The variable of the caller's shell says nothing about the service.
  return { flags: config === null ? {} : { config }, env: { ...env, config: null }, cwd: '/' };
}

function sourceOfProcess(pid: number, { uid }: Environment, proc: string): ConfigOrigin {
  const read = (name: string) => attempt(() => readFileSync(`${proc}/${pid}/${name}`, 'utf8'))?.split('\0') ?? null;
  const [words, variables] = [read('cmdline'), read('environ')];
  const cwd = attempt(() => readlinkSync(`${proc}/${pid}/cwd`));
  if (words === null || variables === null || cwd === null) throw unknown(`cannot read how its process ${pid} was started`);
  const at = words.findIndex((one, index) => one === 'up' && /\/main\.[jt]s$/.test(words[index - 1] ?? ''));
  if (at === -1) throw unknown(`its process ${pid} is not "onejob up", but what the unit or a drop-in starts instead`);
  const config = flagIn('--config', words.slice(at + 1));
  const split = variables.map((one): [string, string] => [one.slice(0, one.indexOf('=')), one.slice(one.indexOf('=') + 1)]);
  return { flags: config === null ? {} : { config }, env: readEnvironment(Object.fromEntries(split), uid, pid), cwd };
}

/** The value of a flag, as `--flag VALUE` or `--flag=VALUE`; null without it. */
function flagIn(flag: string, words: readonly string[]): string | null {
  const at = words.findLastIndex((one) => one === flag || one.startsWith(`${flag}=`));
  const word = words[at];
  if (word === undefined) return null;
  return word === flag ? (words[at + 1] ?? null) : word.slice(flag.length + 1);
}

/** `--config` of a service that does not run; null: it looks where onejob usually looks. */
function configOfUnit(unit: string, environment: string): string | null {
  const lines = unit.replaceAll('\\\n', ' ').split('\n');
  const command = lines.findLast((line) => /^ExecStart\s*=\s*\S/.test(line));
  if (command === undefined) {
    if (unit.trim() === '') return null;
    throw unknown('it does not run, and its unit starts nothing');
  }
  const words = wordsOf(command.slice(command.indexOf('=') + 1));
  if (basename(words[0] ?? '') !== 'onejob' || words[1] !== 'up')
    throw unknown('it does not run, and its unit or a drop-in starts something else than "onejob up"');
  const refuse = (pattern: RegExp) => {
    const line = lines.find((one) => pattern.test(one));
    // Not its value, which may be a secret.
    if (line !== undefined)
      throw unknown(`it does not run, and its unit or a drop-in sets ${line.slice(0, line.indexOf('=')).trim()}`);
  };
  refuse(/^(Root(Directory|Image)|BindPaths|BindReadOnlyPaths)\s*=/);
  const config = flagIn('--config', words);
  if (config !== null) return config;
  refuse(/^(User|EnvironmentFile)\s*=\s*\S/);
  refuse(/^(Pass)?Environment\s*=.*\b(ONEJOB_CONFIG|XDG_CONFIG_HOME|HOME)\b/);
  const [, general] = /^(ONEJOB_CONFIG|XDG_CONFIG_HOME)=/m.exec(environment) ?? [];
  if (general !== undefined) throw unknown(`it does not run, and the environment of systemd's services has ${general}`);
  return null;
}

/** The words of a command in a unit. */
function wordsOf(command: string): string[] {
  return [...command.matchAll(/"((?:\\.|[^"\\])*)"|(\S+)/g)].map(([, quoted, plain]) =>
    (quoted?.replaceAll(/\\(["\\])/g, '$1') ?? plain ?? '').replaceAll('%%', '%').replaceAll('$$', '$'),
  );
}
