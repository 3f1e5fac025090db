/**
 * The man page and the completions, made from the program: `dist/share`, as part of `npm run build`. A package installs the man page
 * by `man` in package.json; `install.sh` links all of them.
 *
 *     npx node scripts/share.ts DIR
 */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Writable } from 'node:stream';
import type { Command } from 'commander';
import { completionScript } from '../src/cli/completion.ts';
import { readVersion } from '../src/cli/session.ts';
import { buildProgram } from '../src/cli.ts';

/** For roff: a backslash, and a dot or an apostrophe at the start of a line, are commands. */
function roff(text: string): string {
  return text
    .replaceAll('\\', '\\e')
    .replaceAll('-', '\\-')
    .replaceAll(/^([.'])/gm, '\\&$1');
}

function program(): Promise<Command> {
  const silent = new Writable({ write: (_chunk, _encoding, done) => done() });
  return buildProgram({ stdout: Object.assign(silent, { columns: 78 }), stderr: silent }, () => async () => {});
}

/** Commands with their subcommands, in the order of the help, without hidden ones. */
function commandsOf(parent: Command): Command[] {
  const help = parent.createHelp();
  return help.visibleCommands(parent).flatMap((one) => [one, ...commandsOf(one)]);
}

/** The path of a command below the program, such as `config check`. */
function nameOf(command: Command): string {
  return command.parent === null || command.parent.parent === null ? command.name() : `${nameOf(command.parent)} ${command.name()}`;
}

/** Everything that `--help` prints, with the text that stands behind it. */
function helpOf(command: Command): string {
  let text = '';
  const writeOut = (more: string): void => {
    text += more;
  };
  command.configureOutput({ writeOut, getOutHelpWidth: () => 78 });
  command.outputHelp();
  return text.trimEnd();
}

export async function manPage(): Promise<string> {
  const root = await program();
  const section = (title: string, body: string) => `.SH ${title}\n${body}\n`;
  const block = (text: string) => `.nf\n${roff(text)}\n.fi`;
  const commands = commandsOf(root).map((one) => `.SS ${roff(nameOf(one))}\n${block(helpOf(one))}`);
  return [
    `.TH ONEJOB 1 "" "onejob ${roff(readVersion())}" "User Commands"\n`,
    section('NAME', 'onejob \\- fresh, single\\-use CI agents on your own machines'),
    section('SYNOPSIS', '.B onejob\n.I COMMAND\n[\\fIOPTION\\fR]...'),
    section('DESCRIPTION', block(helpOf(root))),
    section('COMMANDS', commands.join('\n')),
    section(
      'FILES',
      block(
        [
          '/etc/onejob/config.yml, ~/.config/onejob/config.yml   the config',
          '/etc/onejob/hosts.yml, ~/.config/onejob/hosts.yml   names of other hosts, for --host and status --all',
          '/var/lib/onejob, ~/.local/state/onejob   the state',
        ].join('\n'),
      ),
    ),
    section(
      'ENVIRONMENT',
      block(
        'ONEJOB_CONFIG, ONEJOB_STATE_DIR, ONEJOB_SOCKET, ONEJOB_HOST   as --config, --state-dir, --socket, --host\nNO_COLOR, FORCE_COLOR',
      ),
    ),
  ].join('');
}

if (import.meta.main) {
  const [out = ''] = process.argv.slice(2);
  const files = new Map([['man/man1/onejob.1', await manPage()]]);
  for (const shell of ['bash', 'zsh', 'fish'] as const)
    files.set(`completions/onejob.${shell}`, completionScript(shell, await program()));
  for (const [name, text] of files) {
    mkdirSync(join(out, name, '..'), { recursive: true });
    writeFileSync(join(out, name), text);
  }
}
