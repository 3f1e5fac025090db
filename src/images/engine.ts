/** What building images needs of an Engine, beside what the docker runtime asks it. */
import { createInterface } from 'node:readline';
import { Readable } from 'node:stream';
import { stripVTControlCharacters } from 'node:util';
import { z } from 'zod';
import { systemClock } from '../clock.ts';
import { connect, usualLimits } from '../engine/call.ts';
import type { Endpoint } from '../engine/endpoint.ts';
import { diskFull, isDiskFull, statusOf, translate } from '../engine/failures.ts';
import { messageOf, OnejobError } from '../errors.ts';

const imageAnswer = z.object({
  Id: z.string(),
  RepoTags: z.array(z.string()).nullish(),
  Created: z.number(),
  Size: z.number().default(0),
  Labels: z.record(z.string(), z.string()).nullish(),
});
const containerAnswer = z.object({ ImageID: z.string().default('') });

/** An image on the Engine. */
export interface ImageThere {
  readonly id: string;
  /** Names with their tags, as Docker writes them. */
  readonly tags: readonly string[];
  readonly labels: Readonly<Record<string, string>>;
  /** ms since the epoch */
  readonly created: number;
  /** bytes, with what it shares with others */
  readonly size: number;
}

export interface BuildCall {
  /** For messages, such as `the agent layer of onejob/azure-pipelines:4be1…`. */
  readonly what: string;
  /** null: it is only built on. */
  readonly tag: string | null;
  readonly args: Readonly<Record<string, string>>;
  readonly labels: Readonly<Record<string, string>>;
  readonly context: Readable;
}

/** A step may say nothing for long, such as one that compiles, in ms. */
const silentStep = 30 * 60_000;

/** `close` ends its connections. */
export function connectImageEngine(endpoint: Endpoint) {
  const { raw, ask, close } = connect(endpoint, { ...usualLimits, idle: silentStep }, systemClock);
  const list = async (filters: object, signal: AbortSignal): Promise<ImageThere[]> => {
    const call = { method: 'GET', path: '/images/json', query: { filters }, limit: 'soon', signal } as const;
    const found = z.array(imageAnswer).parse(await ask({ ...call, doing: 'list images' }));
    return found.map(({ Id, RepoTags, Created, Size, Labels }) => ({
      id: Id,
      // Podman says where a name without a registry is, or is taken to be.
      tags: (RepoTags ?? [])
        .filter((tag) => !tag.startsWith('<none>'))
        .map((tag) => tag.replace(/^(?:localhost|docker\.io)\//, '')),
      labels: Labels ?? {},
      created: Created * 1000,
      size: Size,
    }));
  };

  return {
    close,

    /** Images with all of these labels (`name` or `name=value`). */
    labelled: (wanted: readonly string[], signal: AbortSignal) => list({ label: wanted }, signal),
    /** Those of them that have no name and that nothing is built on. */
    dangling: (wanted: readonly string[], signal: AbortSignal) => list({ label: wanted, dangling: ['true'] }, signal),

    /** Ids of images that containers were made from, one for each container. */
    inUse: async (signal: AbortSignal): Promise<string[]> => {
      const call = { method: 'GET', path: '/containers/json', query: { all: true }, limit: 'soon', signal } as const;
      return z
        .array(containerAnswer)
        .parse(await ask({ ...call, doing: 'list containers' }))
        .map(({ ImageID }) => ImageID);
    },

    /** By name or id; `used`: a container was made from it, or an image that has a name. */
    remove: async (image: string): Promise<'removed' | 'absent' | 'used'> => {
      const doing = `remove image ${image}`;
      try {
        await raw({ method: 'DELETE', path: `/images/${image}`, doing, limit: 'late' });
        return 'removed';
      } catch (error) {
        const status = statusOf(error);
        if (status === 404) return 'absent';
        // Podman says 500 where Docker says 409.
        if (status === 409 || (status === 500 && /in use|dependent/i.test(messageOf(error)))) return 'used';
        throw translate(error, doing, endpoint);
      }
    },

    /**
     * Builds one Dockerfile; the id of what was made. `progress` hears of each step. A call that is cut off, by `signal` or
     * because the caller died, ends the build, too. @throws OnejobError E_IMAGE_BUILD, E_DISK_FULL, E_ENGINE_*
     */
    build: async (call: BuildCall, progress: (step: string) => void, signal: AbortSignal): Promise<string> => {
      const { tag, args, labels: given, context, what } = call;
      const query = {
        ...(tag !== null && { t: tag }),
        dockerfile: 'Dockerfile',
        rm: true,
        forcerm: true,
        // Podman's word, which Docker does not know: its steps would have all the labels of what is made in the end.
        layers: false,
        buildargs: args,
        labels: given,
      };
      const doing = `build ${what}`;
      const output = readBuild(progress);
      try {
        const call = { method: 'POST', path: '/build', query, limit: 'idle', stream: true } as const;
        const answer = await raw({ ...call, file: context, doing, signal });
        if (!(answer instanceof Readable)) throw new TypeError('the Engine answered a build without a stream');
        for await (const line of createInterface({ input: answer, crlfDelay: Number.POSITIVE_INFINITY })) {
          if (line.trim() !== '') output.line(line);
        }
      } catch (error) {
        signal.throwIfAborted();
        // What the Engine says right away is about the Dockerfile, such as an instruction that there is not.
        const status = statusOf(error);
        if (status === 400 || status === 500) throw buildFailure(what, messageOf(error), output.step, output.tail(), error);
        throw translate(error, doing, endpoint);
      }
      signal.throwIfAborted();
      if (output.error !== null) throw buildFailure(what, output.error, output.step, output.tail());
      if (output.id !== null) return output.id;
      throw buildFailure(what, 'the Engine finished without naming the image that it built', output.step, output.tail());
    },
  };
}

function buildFailure(what: string, why: string, step: string | null, tail: readonly string[], cause?: unknown): OnejobError {
  if (isDiskFull(`${why} ${tail.join(' ')}`)) return diskFull(`build ${what}`, why, cause);
  const at = step === null ? '' : ` at ${step}`;
  const last = tail.length === 0 ? '' : `\nIts last lines:\n${tail.map((line) => `  ${line}`).join('\n')}`;
  return new OnejobError('E_IMAGE_BUILD', `Cannot build ${what}: it failed${at}: ${oneLine(why)}.${last}`, {
    hint: 'Try it manually with "onejob image build"; "--print" shows what onejob builds.',
    cause,
  });
}

/** Docker and Podman repeat the whole command of a step that failed; how it ended comes last. */
function oneLine(why: string): string {
  const text = why.replaceAll(/\s+/g, ' ').replace(/[.\s]+$/, '');
  const code = /^(?:The command|building at STEP) .*(?:returned a non-zero code:|exit status) (\d+)$/.exec(text)?.[1];
  return code === undefined ? text.slice(0, 500) : `its command returned a non-zero code: ${code}`;
}

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

/**
 * What an Engine says while it builds: which step it is at, what came out, and why it failed. `progress` hears of each step that may
 * take its time, as it begins.
 */
export function readBuild(progress: (step: string) => void) {
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
    /** Takes one JSON line of the answer. @throws SyntaxError or ZodError for what no Engine says */
    line(json: string): void {
      const { stream, error: failure, aux } = answer.parse(JSON.parse(json));
      if (aux?.ID !== undefined) id = aux.ID;
      if (failure !== undefined) error = failure.trim();
      if (stream === undefined) return;
      // A piece may end in the middle of a line, and progress bars go back to its beginning.
      const pieces = (rest + stream).split(/\r?\n|\r/);
      rest = (pieces.pop() ?? '').slice(0, longestRest);
      pieces.forEach(take);
    },
    /** Id of what was made; null while it is not. */
    get id(): string | null {
      return id;
    },
    /** Why it failed; null while it has not. */
    get error(): string | null {
      return error;
    },
    /** The step that it is at, for people; null before the first. */
    get step(): string | null {
      return step;
    },
    /** The last lines that came out. */
    tail: (): string[] => [...lines, ...(rest.trim() === '' ? [] : [rest])].slice(-linesShown),
  };
}

/** An instruction in a few words: what follows `RUN :` is a title, as onejob's own Dockerfiles have it. */
function titleOf(instruction: string): string {
  const title = /^RUN : ([^;]+);/.exec(instruction)?.[1];
  const words = (title ?? instruction.replace(/^RUN (?:set -\S+;\s*)*/, '')).replaceAll(/\s+/g, ' ').trim();
  return words.length > longestStep ? `${words.slice(0, longestStep)}…` : words;
}
