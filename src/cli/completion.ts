/**
 * Completion scripts, generated from the program, so that they know every command and option. They get the names of pools, jobs and
 * slots from `onejob complete`, which asks the running daemon, and those of clouds from the config. It is silent, fast, and starts no
 * daemon.
 */

import type { Command } from 'commander';
import type { Client } from '../api/client.ts';
import { abortable } from '../base/abortable.ts';
import { timeLimit } from '../system/system-clock.ts';
import { connect } from './connect.ts';
import { exitCodes } from './exit.ts';
import { configSource, type Session } from './session.ts';
import { types } from './types.ts';

const shells = ['bash', 'zsh', 'fish'] as const;
export type Shell = (typeof shells)[number];

/** Names that are offered after a command. */
const live: Readonly<Record<string, string>> = {
  logs: 'open-jobs jobs slots',
  report: 'jobs slots',
  jobs: 'jobs',
  artifacts: 'jobs',
  cancel: 'open-jobs',
  move: 'open-jobs',
  wait: 'open-jobs',
  shell: 'held-jobs',
  unhold: 'held-jobs',
  pause: 'pools',
  resume: 'pools',
  drain: 'pools',
};

/** The same after a command of `cloud`. */
const liveOfCloud: Readonly<Record<string, string>> = {
  check: 'cloud-hosts',
  up: 'cloud-hosts',
  down: 'cloud-hosts',
  console: 'cloud-hosts',
  acceptance: 'clouds',
};

interface Entry {
  readonly name: string;
  readonly description: string;
  readonly options: readonly { readonly flags: readonly string[]; readonly description: string }[];
  /** Its subcommands, or what it takes. */
  readonly words: readonly string[];
}

export function completionScript(shell: Shell, program: Command): string {
  const entries = program.createHelp().visibleCommands(program).map(entryOf);
  if (shell === 'fish') return fish(entries);
  return shell === 'bash' ? bash(entries) : `#compdef onejob\nautoload -U +X bashcompinit && bashcompinit\n${bash(entries)}`;
}

function entryOf(command: Command): Entry {
  // The options of its subcommands are offered too.
  const all = [command, ...command.commands].flatMap((each) => each.createHelp().visibleOptions(each));
  const options = [...new Map(all.map((each) => [each.flags, each])).values()].map((each) => ({
    flags: [each.short, each.long].filter((flag) => flag !== undefined && flag !== null),
    description: each.description,
  }));
  const name = command.name();
  const words = name === 'completion' ? [...shells] : command.commands.map((each) => each.name());
  return { name, description: command.description(), options, words };
}

function bash(entries: readonly Entry[]): string {
  const cases = entries.map(({ name, options, words }) => {
    const all = [...options.flatMap((each) => each.flags), ...words].join(' ');
    const asked = live[name] === undefined ? '' : ` ask="${live[name]}"`;
    return `    ${name}) offered=(${all})${asked} ;;`;
  });
  const ofCloud = Object.entries(liveOfCloud).map(([name, what]) => `    ${name}) ask=${what} ;;`);
  return `_onejob() {
  local word=\${COMP_WORDS[COMP_CWORD]} before=\${COMP_WORDS[COMP_CWORD - 1]} ask= config= names= each i
  local -a offered
  COMPREPLY=()
  for ((i = 2; i < COMP_CWORD; i++)); do
    [ "\${COMP_WORDS[i]}" = --config ] && config=\${COMP_WORDS[i + 1]}
    # What stands behind -- is a command of its own.
    if [ "\${COMP_WORDS[i]}" = -- ]; then
      # As names of files they are quoted on the command line.
      compopt -o filenames 2>/dev/null
      while IFS= read -r each; do [ -n "$each" ] && COMPREPLY+=("$each"); done <<<"$(compgen -c -f -- "$word")"
      return
    fi
  done
  if [ "$COMP_CWORD" -eq 1 ]; then
    offered=(${entries.map((each) => each.name).join(' ')} --help --version)
  else case \${COMP_WORDS[1]} in
${cases.join('\n')}
  esac; fi
  [ "\${COMP_WORDS[1]}" = run ] && [ "$before" = --pool ] && offered=() ask=pools
  [ "\${COMP_WORDS[1]}" = move ] && [ "$before" = --to ] && offered=() ask=pools
  if [ "\${COMP_WORDS[1]}" = cloud ] && [ "$COMP_CWORD" -gt 2 ]; then
    case $word in -*) ;; *) offered=() ;; esac
    case \${COMP_WORDS[2]} in
${ofCloud.join('\n')}
    esac
    case $before in --cloud) ask=clouds ;; --host) ask=cloud-hosts ;; --config) ask= ;; esac
  fi
  case $word in -*) ;; *) [ -n "$ask" ] && names=$("\${COMP_WORDS[0]}" complete $ask \${config:+--config "$config"} 2>/dev/null </dev/null) ;; esac
  # Unlike "compgen -W", which runs the commands in a name, this expands nothing.
  while IFS= read -r each; do [ -n "$each" ] && offered+=("$each"); done <<<"$names"
  for each in "\${offered[@]}"; do [[ $each == "$word"* ]] && COMPREPLY+=("$each"); done
  return 0
}
complete -o default -F _onejob onejob
`;
}

function fish(entries: readonly Entry[]): string {
  const quote = (text: string) => `'${text.replaceAll('\\', '\\\\').replaceAll("'", "\\'")}'`;
  const lines = ['complete -c onejob -f'];
  for (const { name, description, options, words } of entries) {
    lines.push(`complete -c onejob -n __fish_use_subcommand -a ${name} -d ${quote(description)}`);
    const here = `complete -c onejob -n '__fish_seen_subcommand_from ${name}'`;
    for (const word of words) lines.push(`${here} -a ${word}`);
    if (live[name] !== undefined) lines.push(`${here} -a '(onejob complete ${live[name]} 2>/dev/null)'`);
    for (const [sub, what] of name === 'cloud' ? Object.entries(liveOfCloud) : [])
      lines.push(`${here.slice(0, -1)}; and __fish_seen_subcommand_from ${sub}' -a '(onejob complete ${what} 2>/dev/null)'`);
    for (const option of options) {
      const flags = option.flags.map((flag) => (flag.startsWith('--') ? `-l ${flag.slice(2)}` : `-s ${flag.slice(1)}`));
      const values = option.flags.includes('--pool') && name === 'run' ? " -x -a '(onejob complete pools 2>/dev/null)'" : '';
      lines.push(`${here} ${flags.join(' ')}${values} -d ${quote(option.description)}`);
    }
  }
  return `${lines.join('\n')}\n`;
}

export type Completed = 'pools' | 'slots' | 'jobs' | 'open-jobs' | 'held-jobs' | 'clouds' | 'cloud-hosts';

/** ms for the whole command. */
const patience = 2_000;
const jobsOffered = 100;

/**
 * What a shell can be given unquoted and does not take for an option. Names come from a config that may be somebody else's, from CI services and
 * from other hosts' daemons, and a shell may run what is in them. Every name that onejob's own config and queue allow is one.
 */
const harmless = /^[A-Za-z0-9_][A-Za-z0-9._/:@+-]{0,255}$/;

/** Always 0: names that are not known, or not harmless, are not offered. */
export async function complete(session: Session, what: readonly Completed[]): Promise<number> {
  const signal = timeLimit(patience);
  const print = (names: readonly string[]) => session.output.print(...names.filter((name) => harmless.test(name)));
  try {
    if (what.some((each) => each === 'clouds' || each === 'cloud-hosts')) {
      const { checkConfig } = await import('../config/load.ts');
      const { config, errors } = await checkConfig({ types, ...configSource(session), look: null, gpus: false });
      if (errors.length > 0) return exitCodes.ok;
      const names = { clouds: config.clouds.map(({ name }) => name), 'cloud-hosts': config.hosts.map(({ host }) => host) };
      await print(what.flatMap((each) => (each === 'clouds' || each === 'cloud-hosts' ? names[each] : [])));
      return exitCodes.ok;
    }
    const connection = await abortable(connect(session, { start: false, signal, patience: 0 }), signal);
    try {
      const names = await abortable(Promise.all(what.map((each) => namesOf(connection.client, each))), signal);
      await print(names.flat());
    } finally {
      connection.close();
    }
  } catch {
    // Whatever the reason, an error must not be written over somebody's command line.
  }
  return exitCodes.ok;
}

async function namesOf(client: Client, what: Completed): Promise<string[]> {
  if (what === 'pools') return (await client.status()).pools.map(({ name }) => name);
  if (what === 'slots') return (await client.status()).pools.flatMap(({ slots }) => slots.map(({ key }) => key));
  const jobs = await client.jobs({ all: what !== 'open-jobs', pool: null, limit: jobsOffered });
  return jobs
    .filter(({ held }) => what !== 'held-jobs' || held != null)
    .map(({ id }) => id)
    .reverse();
}
