/** What an Engine says while it builds: which step it is at, what came out, and why it failed. */
import { stripVTControlCharacters } from 'node:util';
import { z } from 'zod';

/** Lines of a failed build that its error shows. */
const linesShown = 15;
const longestLine = 300;
const longestStep = 70;
/** Of a line that has no end yet; the rest of a longer one is dropped. */
const longestRest = 64 * 1024;

const answer = z.object({
  stream: z.string().optional(),
  status: z.string().optional(),
  error: z.string().optional(),
  aux: z.object({ ID: z.string().optional() }).optional().catch(undefined),
});

export interface BuildOutput {
  /** Takes one JSON line of the answer. @throws SyntaxError or ZodError for what no Engine says */
  line(json: string): void;
  /** Id of what was made; null while it is not. */
  readonly id: string | null;
  /** Why it failed; null while it has not. */
  readonly error: string | null;
  /** The step that it is at, for people; null before the first. */
  readonly step: string | null;
  /** The last lines that came out. */
  tail(): string[];
}

/** `progress` hears of each step that may take its time, as it begins. */
export function readBuild(progress: (step: string) => void): BuildOutput {
  const lines: string[] = [];
  let rest = '';
  let id: string | null = null;
  let error: string | null = null;
  let step: string | null = null;

  const take = (said: string): void => {
    const line = stripVTControlCharacters(said);
    // Docker says `Step 3/9 : RUN …`, Podman `STEP 3/9: RUN …`.
    const [, at, of, instruction] = /^step (\d+)\/(\d+) ?: (.*)$/i.exec(line) ?? [];
    if (instruction !== undefined) {
      step = `step ${at}/${of} ${titleOf(instruction)}`;
      // The others take no time.
      if (/^(?:RUN|COPY|ADD|FROM)\b/i.test(instruction)) progress(step);
      return;
    }
    // Podman has no `aux` for this; both end with the id.
    const made = /^(?:Successfully built )?([0-9a-f]{12,64})$/.exec(line)?.[1];
    if (made !== undefined) id ??= made;
    if (/^(?: ?--->|-->|Removing intermediate container|Successfully )/.test(line) || line.trim() === '') return;
    lines.push(line.length > longestLine ? `${line.slice(0, longestLine)}…` : line);
    if (lines.length > linesShown) lines.shift();
  };

  return {
    line(json) {
      const { stream, error: failure, aux } = answer.parse(JSON.parse(json));
      if (aux?.ID !== undefined) id = aux.ID;
      if (failure !== undefined) error = failure.trim();
      if (stream === undefined) return;
      // A piece may end in the middle of a line, and progress bars go back to its beginning.
      const pieces = (rest + stream).split(/\r?\n|\r/);
      rest = (pieces.pop() ?? '').slice(0, longestRest);
      pieces.forEach(take);
    },
    get id() {
      return id;
    },
    get error() {
      return error;
    },
    get step() {
      return step;
    },
    tail: () => [...lines, ...(rest.trim() === '' ? [] : [rest])].slice(-linesShown),
  };
}

/** An instruction in a few words: what follows `RUN :` is a title, as onejob's own Dockerfiles have it. */
function titleOf(instruction: string): string {
  const title = /^RUN : ([^;]+);/.exec(instruction)?.[1];
  const words = (title ?? instruction.replace(/^RUN (?:set -\S+;\s*)*/, '')).replaceAll(/\s+/g, ' ').trim();
  return words.length > longestStep ? `${words.slice(0, longestStep)}…` : words;
}
