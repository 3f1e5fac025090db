/**
 * The first process of an agent's container: starts the gate, passes on the wish that it ends, and prints how it ended, unless its
 * node has ended it. Then it waits for its files to be fetched. It is in the pod's spec, which others can read: no script of a job and no secret.
 *
 * Standard error goes where standard output goes: the API cannot tell them apart, and so they keep their order.
 */
import { quoted } from '../../base/quoted.ts';
import type { AgentId, Exit } from '../../core/slot.ts';
import { answering, gateScript } from '../gate.ts';

/** Exit code of a container that did not begin, because what was granted is not fit for a job. */
export const exitUnfit = 93;
/** s for which an agent that has ended waits on its node for its files to be fetched. */
const lingers = 600;
/** MiB of a GPU's memory that are in use although nobody uses it, at most. */
const idleMemory = 1024;

const mark = '\u001e';

export interface SupervisorParts {
  readonly agent: AgentId;
  readonly gpus: number;
  /** Files that onejob brings before the gate, by their paths. */
  readonly programs?: readonly string[];
  /** As `SandboxSpec.look`. */
  readonly look?: string | undefined;
}

export function supervisorScript({ agent, gpus, programs = [], look }: SupervisorParts): string {
  return [
    ...programs.map((path) => `until [ -x ${quoted(path)} ]; do sleep 0.05; done`),
    ...(gpus === 0 ? [] : gpuCheck(agent, gpus)),
    // Its errors would be part of the answer: the log does not tell them apart.
    ...(look === undefined ? [] : [`{ ${answering(agent, look)}\n} 2>/dev/null`]),
    'exec 3<&0 </dev/null 2>&1',
    'p= t= n=',
    // A shell that waits handles a signal at once. TERM comes from the node.
    ...[
      `trap 'n=1 i=1; [ -z "$p" ] || kill -TERM "$p" 2>/dev/null' TERM`,
      `trap 't=1 i=1; [ -z "$p" ] || kill -TERM "$p" 2>/dev/null' USR1`,
    ],
    `sh -c ${quoted(gateScript(agent))} <&3 3<&- &`,
    'p=$!',
    '[ -z "$n$t" ] || kill -TERM "$p"',
    'exec 3<&-',
    // A wait that a signal has ended has the signal's code, though the job may have ended meanwhile, with its own: then it is asked for
    // again. Shells that have told it say 127.
    'c=',
    'while i=; wait "$p" 2>/dev/null; s=$?; [ "$s" = 127 ] && [ -n "$c" ] && [ "$c" != 138 ] || c=$s; [ -n "$i" ]; do :; done',
    // All that the job left; a process that signals all others is not among them, nor is the first one.
    'kill -KILL -1 2>/dev/null',
    // What the node has ended has no code of its own: the pod says why.
    'case $n:$c in 1:137 | 1:143) exit "$c" ;; esac',
    'o=',
    '[ "$c" != 137 ] || for f in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do',
    `  while read -r n v; do [ "$n:$v" = "$n:0" ] || [ "$n" != oom_kill ] || o=' oom'; done <"$f"`,
    'done 2>/dev/null',
    `trap 'exit "$c"' TERM; trap '' USR1`,
    `printf '\\036onejob exited ${agent} %s%s\\n' "$c" "$o"`,
    `sleep ${lingers} &`,
    'wait "$!"',
    'exit "$c"',
  ].join('\n');
}

/** As many as were asked for are there, answer, and nothing uses their memory. */
function gpuCheck(agent: AgentId, gpus: number): string[] {
  const unfit = (words: string): string => `{ printf '\\036onejob unfit ${agent} %s\\n' "${words}"; exit ${exitUnfit}; }`;
  return [
    'if command -v nvidia-smi >/dev/null; then',
    `  l=$(nvidia-smi -L 2>&1) || ${unfit('nvidia-smi fails: $l')}`,
    `  n=$(printf '%s\\n' "$l" | grep -c '^ *MIG ')`,
    `  [ "$n" != 0 ] || n=$(printf '%s\\n' "$l" | grep -c '^GPU ')`,
    `  [ "$n" = ${gpus} ] || ${unfit(`it was asked for ${gpus} GPUs, and Kubernetes granted $n`)}`,
    '  for m in $(nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits 2>/dev/null); do',
    `    case $m in *[!0-9]*) ;; *) [ "$m" -le ${idleMemory} ] || ${unfit('$m MiB of the memory of a GPU are in use')} ;; esac`,
    '  done',
    'fi',
  ];
}

/** What the supervisor's last line tells, and how much of `bytes` comes before it. null: `bytes` does not end with that line. */
export function endIn(agent: AgentId, bytes: Uint8Array): { readonly before: number; readonly exit: Exit } | null {
  const text = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('latin1');
  const at = text.lastIndexOf(`${mark}onejob exited ${agent} `);
  const found = at === -1 ? null : /^\S+ exited \S+ (\d+)( oom)?\n$/.exec(text.slice(at));
  if (found === null) return null;
  const exit: Exit = found[2] === undefined ? { kind: 'code', code: Number(found[1]) } : { kind: 'oom' };
  return { before: at, exit };
}

/** Bytes of its last line, at most. */
export const endLength = 128;

/** Lines in which a container says why it did not begin, at most: what programs say of GPUs has several. */
export const unfitLines = 20;

/** Why it did not begin, if the end of its log tells that: the first line of it. */
export function unfitIn(agent: AgentId, log: string): string | null {
  const [, said] = log.split(`${mark}onejob unfit ${agent} `);
  return said === undefined ? null : (said.split('\n')[0] ?? '').trim();
}

/** Runs next to the first process. The job gets TERM, all that it started KILL. TERM to the first process would be the node's. */
export const signalScripts = { TERM: 'kill -USR1 1', KILL: 'kill -KILL -1' } as const;

/** Takes a program on its standard input, whole or not at all. */
export function takeProgram(path: string): string {
  const [whole, draft] = [quoted(path), quoted(`${path}.new`)];
  return `cat >${draft} && chmod 555 ${draft} && mv ${draft} ${whole}`;
}
