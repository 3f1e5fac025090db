/**
 * The gate: the first process of every sandbox. A few lines of POSIX shell builtins that report ready, wait for one whole script
 * and become it. Only this file knows the frame and the markers.
 *
 * Guarantees (`gate.test.ts`, on dash, bash and busybox): a torn frame is ignored; a frame sent twice runs once; end of input
 * without a frame exits with 96; the script's standard input is empty; nothing of the script is in argv or environment.
 */

import { inQuotes } from '../base/quoted.ts';
import type { AgentId } from '../core/slot.ts';

/** Exit code of a gate whose input ended before a whole frame. */
export const exitNoScript = 96;
/** Exit code of a gate that could not open its devices; nothing has run. */
export const exitNoDevice = 97;

const mark = '\u001e';

/** The line that a gate prints once it waits, without its newline. */
export function readyMarker(agent: AgentId): string {
  return `${mark}onejob ready ${agent}`;
}

/** The line that a gate prints right before it runs the script, without its newline. */
export function releasedMarker(agent: AgentId): string {
  return `${mark}onejob released ${agent}`;
}

/**
 * The gate's program, for `sh -c`. `deviceNodes` are opened before the script runs. The agent id may only contain letters, digits
 * and dashes, because it is part of a shell pattern.
 */
export function gateScript(agent: AgentId, deviceNodes: readonly string[] = []): string {
  if (!/^[A-Za-z0-9-]+$/.test(agent)) throw new RangeError(`not an agent id: ${agent}`);
  const devices = deviceNodes.map((path) => `( : <${inQuotes(path)} ) 2>/dev/null || exit ${exitNoDevice}`);
  return [
    `printf '\\036onejob ready ${agent}\\n'`,
    'while IFS= read -r _oj_l; do',
    `case $_oj_l in "${agent} "*" ${agent}") ;; *) continue;; esac`,
    '_oj_l=${_oj_l#* }; _oj_n=${_oj_l%% *}; _oj_l=${_oj_l#* }; _oj_l=${_oj_l% *}',
    '[ "${#_oj_l}" = "$_oj_n" ] || continue',
    // printf %b reverts the escapes. The dot keeps trailing newlines through the command substitution.
    '_oj_l=$(printf %b. "$_oj_l"); _oj_l=${_oj_l%.}',
    ...devices,
    `exec </dev/null; printf '\\036onejob released ${agent}\\n'; eval "unset _oj_l _oj_n; $_oj_l"; exit`,
    `done; exit ${exitNoScript}`,
  ].join('\n');
}

/**
 * A script as the gate reads it: `ID LENGTH ESCAPED ID` on its own line. It is escaped to ASCII, so that shells of any locale
 * count the same length, and does not contain the agent id. So a frame that is torn, or mixed with another sender's, does not
 * match, and may be sent again from the start.
 * @throws RangeError if the script contains a NUL byte, which a shell cannot hold
 */
export function frame(agent: AgentId, script: string): Uint8Array {
  const bytes = Buffer.from(script, 'utf8').toString('latin1');
  if (bytes.includes('\0')) throw new RangeError('a script cannot contain a NUL byte');
  const special = new RegExp(`${agent}|[^ -\\[\\]-~]`, 'g');
  const escaped = bytes.replace(special, (character) => {
    const octal = `\\0${character.charCodeAt(0).toString(8).padStart(3, '0')}`;
    return character === '\n' ? '\\n' : octal + character.slice(1);
  });
  return Buffer.from(`\n${agent} ${escaped.length} ${escaped} ${agent}\n`, 'latin1');
}

/** Runs `script`, whose output and exit code `answerIn` then finds in what was printed. Its standard input is empty. */
export function answering(agent: AgentId, script: string): string {
  return `(\n${script}\n) </dev/null; _oj_c=$?; printf '\\n%s %s\\n' ${agent} "$_oj_c"`;
}

/** `code`: null if the script did not finish. */
export function answerIn(agent: AgentId, printed: string): { readonly text: string; readonly code: string | null } {
  const end = printed.lastIndexOf(`\n${agent} `);
  if (end === -1) return { text: '', code: null };
  return { text: printed.slice(0, end), code: printed.slice(end + agent.length + 2).trim() };
}

/** What a gate has reported so far. */
export type GateState = 'silent' | 'ready' | 'released';

/**
 * Removes the gate's markers from a sandbox's standard output. Everything before *released* is dropped, since it is not the
 * job's. Every byte after it passes unchanged, even if it looks like a marker.
 */
export class MarkerFilter {
  #state: GateState = 'silent';
  #line: Buffer<ArrayBufferLike> = Buffer.alloc(0);
  /** A waiting gate prints nothing. */
  #hasMore = false;
  readonly #ready: Buffer;
  readonly #released: Buffer;

  constructor(agent: AgentId) {
    this.#ready = Buffer.from(readyMarker(agent));
    this.#released = Buffer.from(releasedMarker(agent));
  }

  get state(): GateState {
    return this.#state;
  }

  /** Whether *ready* is the last that was printed, to the byte. */
  get waits(): boolean {
    return this.#state === 'ready' && !this.#hasMore && this.#line.length === 0;
  }

  /** Takes standard output in order; returns the job's part of it. */
  push(bytes: Uint8Array): Uint8Array {
    if (this.#state === 'released') return bytes;
    let rest = Buffer.concat([this.#line, bytes]);
    for (let end = rest.indexOf(10); end !== -1; end = rest.indexOf(10)) {
      const line = rest.subarray(0, end);
      rest = rest.subarray(end + 1);
      if (this.#state === 'silent') {
        if (line.equals(this.#ready)) this.#state = 'ready';
      } else if (line.equals(this.#released)) {
        this.#state = 'released';
        this.#line = Buffer.alloc(0);
        return rest;
      } else {
        this.#hasMore = true;
      }
    }
    // Markers are short, so the rest of a longer line does not matter.
    this.#line = rest.length > 4096 ? rest.subarray(0, 4096) : rest;
    return new Uint8Array(0);
  }
}
