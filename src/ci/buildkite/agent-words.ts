/**
 * What the agent logs of itself (v3.137 `core/client.go`, `agent/agent_worker_action.go`, `agent/run_job.go`; v3.62 to v4 say it in these
 * words, or in those that stand beside them). A job that gets hold of its agent's standard error can say anything here, of its own
 * agent alone.
 */
import { stripVTControlCharacters } from 'node:util';
import type { JobId } from '../../core/slot.ts';

export type AgentWord =
  /** It is registered. */
  | { readonly said: 'online' }
  /** It was given a job, which it has yet to accept. */
  | { readonly said: 'assigned'; readonly job: JobId }
  /** Nothing came of the job; it asks for another one. */
  | { readonly said: 'failed' }
  /** It runs the job that it was assigned last. `build`: address of its build. */
  | { readonly said: 'began'; readonly build: string | null }
  /** The exit status of its job. */
  | { readonly said: 'exited'; readonly code: number }
  /** The service was told of the job's end. */
  | { readonly said: 'finished' };

/** null for all else. A line begins with the time, its level and the agent's name, has colours, and may end with spaces. */
export function agentWord(line: string): AgentWord | null {
  const text = stripVTControlCharacters(line).trimEnd();
  if (/ (Successfully registered agent ".*" with tags \[|Waiting for (instructions|work)\.\.\.$)/.test(text))
    return { said: 'online' };
  const job = / Assigned job ([A-Za-z0-9-]{1,64})\. Accepting\.\.\.$/.exec(text)?.[1];
  if (job !== undefined) return { said: 'assigned', job };
  if (/ failed to (accept|initialize|run) job: /i.test(text)) return { said: 'failed' };
  const began = / Starting job (?:at |[A-Za-z0-9-]+(?: for build at |$))(\S*)$/.exec(text);
  if (began !== null) return { said: 'began', build: /^https?:\/\/[^\s"'<>#]+/.exec(began[1] ?? '')?.[0] ?? null };
  const code = / Process with PID: \d+ finished with Exit Status: (-?\d{1,6}), Signal: \S+$/.exec(text)?.[1];
  if (code !== undefined) return { said: 'exited', code: Number(code) };
  return / Finished job (at |[A-Za-z0-9-]+( for build at |$))\S*$/.test(text) ? { said: 'finished' } : null;
}
