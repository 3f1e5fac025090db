/**
 * Jobs of the contract, told twice: for a shell, and in steps for a runtime that acts jobs out. Both say the same, and the tests
 * expect the same of both.
 */

/** What a job does next. Paths are relative to its workspace. Text is latin1: each character is one byte. */
export type Step =
  | { readonly say: string; readonly to?: 'stderr'; readonly times?: number }
  /** ms */
  | { readonly sleep: number }
  /** Until a signal comes. */
  | { readonly wait: 'signal' }
  | { readonly exit: number }
  /** By itself. */
  | { readonly kill: 'KILL' }
  /** What it does when TERM comes, from then on; nothing: it ignores TERM. */
  | { readonly trap: readonly Step[] }
  /** Prints a variable of its environment, its standard input, its working directory. */
  | { readonly show: 'stdin' | 'folder' | { readonly variable: string } | { readonly file: string } }
  /** Says `says` when all of these files are its user's. */
  | { readonly mine: readonly string[]; readonly says: string }
  /** Runs an executable file of the workspace: a shell script of one `echo`. */
  | { readonly run: string }
  | { readonly folder: string }
  /** Makes a file of `text`, so many zeros, or a hole of so many bytes. */
  | { readonly file: string; readonly text: string | { readonly zeros: number } | { readonly hole: number } }
  | { readonly append: string; readonly text: string }
  | { readonly link: string; readonly to: string }
  | { readonly hardLink: string; readonly to: string }
  | { readonly remove: string };

export interface ContractJob {
  readonly shell: string;
  /** null: only a shell can do it. */
  readonly steps: readonly Step[] | null;
}

export function job(shell: string, steps: readonly Step[] | null): ContractJob {
  return { shell, steps };
}
