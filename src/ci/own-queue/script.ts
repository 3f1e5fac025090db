/**
 * A job as a script for the gate: go to the workspace, set the environment, become the command. The `exec` at the end
 * makes the command the process that TERM reaches, and passes its exit code on, 127 for a missing command too.
 */
import { OnejobError } from '../../errors.ts';
import type { AgentContext } from '../ci-service.ts';
import type { Job } from './job.ts';

/** `text` as one word of a POSIX shell. @throws OnejobError for a NUL byte, which no shell can carry */
export function quote(text: string): string {
  if (text.includes('\0')) throw new OnejobError('E_JOB_REQUEST', 'A command or variable cannot contain a NUL byte.');
  return `'${text.replaceAll("'", "'\\''")}'`;
}

const variableName = /^[A-Za-z_][A-Za-z0-9_]*$/;
// Assigning these ends a shell (bash: readonly variable) before the command has begun.
const shellsOwn = new Set(['BASHOPTS', 'BASH_VERSINFO', 'EUID', 'PPID', 'SHELLOPTS', 'UID']);

/** @throws OnejobError E_JOB_REQUEST for a name that a shell cannot export */
function checkVariable(name: string): void {
  if (variableName.test(name) && !shellsOwn.has(name)) return;
  const why = shellsOwn.has(name)
    ? 'shells do not let it be set'
    : 'it must be letters, digits and underscores, not starting with a digit';
  throw new OnejobError('E_JOB_REQUEST', `Cannot set the environment variable ${JSON.stringify(name)}: ${why}.`, {
    hint: 'Choose another name, or set it in the command itself with "env".',
  });
}

/** What every job finds in its environment; only `CI` may be set otherwise by the request. */
export function jobEnvironment({ id, request, progress }: Job, context: AgentContext): Record<string, string> {
  return {
    CI: 'true',
    ...request.env,
    ONEJOB: 'true',
    ONEJOB_JOB_ID: id,
    ONEJOB_POOL: context.pool,
    ONEJOB_SLOT: context.slot,
    ONEJOB_AGENT: context.name,
    ONEJOB_ATTEMPT: String(progress.attempt),
    ONEJOB_WORKSPACE: context.workspace,
  };
}

export interface JobScript {
  readonly workspace: string;
  readonly env: Readonly<Record<string, string>>;
  readonly command: readonly string[];
}

/** @throws OnejobError E_JOB_REQUEST when a shell could not carry it */
export function jobScript({ workspace, env, command }: JobScript): string {
  // Some shells tell the job where its gate stood before.
  const lines = [`cd ${quote(workspace)} || exit 125`, 'unset OLDPWD'];
  for (const [name, value] of Object.entries(env)) {
    checkVariable(name);
    lines.push(`export ${name}=${quote(value)}`);
  }
  lines.push(`exec ${command.map(quote).join(' ')}`);
  return lines.join('\n');
}
