/** Jobs that are acted out: a few steps in virtual time instead of a program. */
import type { Step } from '../../kit/runtime-contract/job.ts';
import type { Inside } from './sandbox.ts';

/** What a job does. */
export interface Act {
  /** How long it takes, virtual ms. */
  readonly ms: number;
  readonly exit: number;
  /** What it prints at its begin and at its end. */
  readonly says?: string;
  /** What it prints at its begin on its standard error. */
  readonly complains?: string;
  /** ms from TERM to its end; null: it ignores TERM. Default 0. */
  readonly term?: number | null;
  /** Files that it makes in its workspace at its begin: path to text. */
  readonly makes?: Readonly<Record<string, string>>;
  /** Bytes that it writes at its begin beside those. */
  readonly writes?: number;
}

/** Every job that is acted out is this command with one argument: an `Act`, or steps. */
const command = /^exec 'sim' '((?:[^']|'\\'')*)'$/m;

/** The command of a shell that acts this out. */
export function scriptOfAct(what: Act | readonly Step[]): string {
  return `exec 'sim' '${JSON.stringify(what).replaceAll("'", "'\\''")}'`;
}

/** Acts out what a script asks for. A script of anything else ends with 127, as where there is no such command. */
export function actOut(inside: Inside): void {
  const [, json] = command.exec(inside.script) ?? [];
  if (json === undefined) {
    inside.end({ kind: 'code', code: 127 });
    return;
  }
  const what = JSON.parse(json.replaceAll("'\\''", "'")) as Act | readonly Step[];
  if (isSteps(what)) {
    new Acting(inside).go(what);
    return;
  }
  const { ms, exit, says, complains, term = 0, makes, writes } = what;
  for (const [path, text] of Object.entries(makes ?? {})) inside.files.write(path, Buffer.from(text));
  if (writes !== undefined) inside.files.write('written', { zeros: writes });
  if (term !== 0)
    inside.onTerm(() => {
      if (term !== null) inside.after(term, () => inside.endBy('TERM'));
    });
  if (says !== undefined) inside.print(Buffer.from(says));
  if (complains !== undefined) inside.print(Buffer.from(complains), 'stderr');
  inside.after(ms, () => {
    if (says !== undefined) inside.print(Buffer.from(says));
    inside.end({ kind: 'code', code: exit });
  });
}

function isSteps(what: Act | readonly Step[]): what is readonly Step[] {
  return Array.isArray(what);
}

/** One job in the middle of its steps. */
class Acting {
  readonly #inside: Inside;
  #cancel: () => void = () => {};

  constructor(inside: Inside) {
    this.#inside = inside;
  }

  go(steps: readonly Step[]): void {
    for (const [index, step] of steps.entries()) {
      if ('sleep' in step) {
        this.#cancel = this.#inside.after(step.sleep, () => this.go(steps.slice(index + 1)));
        return;
      }
      if ('wait' in step || this.#isOver(step)) return;
    }
    this.#inside.end({ kind: 'code', code: 0 });
  }

  /** Does one step; true when that was the end. */
  #isOver(step: Exclude<Step, { sleep: number } | { wait: string }>): boolean {
    const inside = this.#inside;
    const { files } = inside;
    const print = (text: string, to?: 'stderr') => inside.print(Buffer.from(text, 'latin1'), to);
    if ('exit' in step) inside.end({ kind: 'code', code: step.exit });
    else if ('kill' in step) inside.endBy(step.kill);
    else if ('say' in step) print(step.say.repeat(step.times ?? 1), step.to);
    else if ('trap' in step)
      inside.onTerm(() => {
        if (step.trap.length === 0) return;
        this.#cancel();
        this.go(step.trap);
      });
    else if ('show' in step) print(this.#shown(step.show));
    else if ('mine' in step) {
      const isMine = step.mine.every((path) => {
        const entry = files.get(path);
        return entry !== undefined && entry.kind !== 'link' && entry.uid === files.uid;
      });
      if (isMine) print(step.says);
    } else if ('run' in step) {
      const program = files.get(step.run);
      const [, said] = /echo (.*)/.exec(files.text(step.run) ?? '') ?? [];
      if (program?.kind === 'file' && (program.mode & 0o100) !== 0) print(`${said}\n`);
    } else if ('file' in step) files.write(step.file, typeof step.text === 'string' ? Buffer.from(step.text, 'latin1') : step.text);
    else if ('append' in step) files.write(step.append, Buffer.from(`${files.text(step.append) ?? ''}${step.text}`, 'latin1'));
    else if ('folder' in step) files.folder(step.folder);
    else if ('link' in step) files.set(step.link, { kind: 'link', to: step.to });
    else if ('hardLink' in step) {
      const other = files.get(step.to);
      if (other !== undefined) files.set(step.hardLink, other);
    } else files.remove(step.remove);
    return 'exit' in step || 'kill' in step;
  }

  #shown(what: Extract<Step, { show: unknown }>['show']): string {
    const { spec, files, workspace } = this.#inside;
    // A gate closes its standard input before it runs anything.
    if (what === 'stdin') return '';
    if (what === 'folder') return `${workspace}\n`;
    return 'variable' in what ? (spec.recipe.env[what.variable] ?? '') : (files.text(what.file) ?? '');
  }
}
