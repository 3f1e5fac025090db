/** The Engine's API for building images, in addition to what the docker runtime uses. */
import type { Readable } from 'node:stream';
import { stripVTControlCharacters } from 'node:util';
import { z } from 'zod';
import { messageOf, OnejobError } from '../base/errors.ts';
import { connect, type Query, usualLimits } from '../runtimes/engine/call.ts';
import type { Endpoint } from '../runtimes/engine/endpoint.ts';
import { carries } from '../runtimes/engine/engine.ts';
import { diskFull, isDiskFull, statusOf, translate } from '../runtimes/engine/failures.ts';
import { systemClock } from '../system/system-clock.ts';

const imageAnswer = z
  .object({
    Id: z.string(),
    RepoTags: z.array(z.string()).nullish(),
    Created: z.number(),
    Size: z.number().default(0),
    Labels: z.record(z.string(), z.string()).nullish(),
  })
  .transform(({ Id, RepoTags, Created, Size, Labels }) => ({
    id: Id,
    /** Names with their tags, as Docker writes them. Podman adds a registry to a name without one. */
    tags: (RepoTags ?? []).flatMap((tag) => (tag.startsWith('<none>') ? [] : tag.replace(/^(?:localhost|docker\.io)\//, ''))),
    labels: Labels ?? {},
    /** ms since the epoch */
    created: Created * 1000,
    /** bytes, including what it shares with others */
    size: Size,
  }));
const containersAnswer = z.array(z.object({ ImageID: z.string().default('') }));

export type ImageThere = Readonly<z.output<typeof imageAnswer>>;

export interface BuildCall {
  /** For messages, such as `the agent layer of onejob/azure-pipelines:4be1…`. */
  readonly what: string;
  /** null for a layer that is only built on. */
  readonly tag: string | null;
  readonly args: Readonly<Record<string, string>>;
  readonly labels: Readonly<Record<string, string>>;
  readonly context: Readable;
}

/** ms that a step may print nothing, such as one that compiles. */
const silentStep = 30 * 60_000;

export interface ImageEngine {
  close(): void;
  /** Images with all of these labels (`name` or `name=value`). */
  labelled(wanted: readonly string[], signal: AbortSignal): Promise<ImageThere[]>;
  /** Those of them without a name and without images built on them. */
  dangling(wanted: readonly string[], signal: AbortSignal): Promise<ImageThere[]>;
  /** Ids of the images of all containers, one for each container. */
  inUse(signal: AbortSignal): Promise<string[]>;
  /** By name or id. False if it is gone already, or a container or an image that has a name uses it. */
  remove(image: string): Promise<boolean>;
  /** Builds one Dockerfile; the image's id. `signal` ends it. @throws OnejobError E_IMAGE_BUILD, E_DISK_FULL, E_ENGINE_* */
  build(call: BuildCall, progress: (step: string) => void, signal: AbortSignal): Promise<string>;
}

export function connectImageEngine(endpoint: Endpoint): ImageEngine {
  const { raw, ask, lines, close } = connect(endpoint, { ...usualLimits, idle: silentStep }, systemClock);
  const look = (doing: string, path: string, query: Query, signal: AbortSignal) =>
    ask({ method: 'GET', path, query, doing, limit: 'soon', signal });
  const list = async (
    filters: { readonly label: readonly string[]; readonly dangling?: readonly string[] },
    signal: AbortSignal,
  ) => {
    const all = z.array(imageAnswer).parse(await look('list images', '/images/json', { filters }, signal));
    return all.filter(({ labels }) => carries(filters.label, labels));
  };

  return {
    close,
    labelled: (wanted, signal) => list({ label: wanted }, signal),
    dangling: async (wanted, signal) =>
      (await list({ label: wanted, dangling: ['true'] }, signal)).filter(({ tags }) => tags.length === 0),

    async inUse(signal) {
      const found = await look('list containers', '/containers/json', { all: true }, signal);
      return containersAnswer.parse(found).map(({ ImageID }) => ImageID);
    },

    async remove(image) {
      const doing = `remove image ${image}`;
      try {
        await raw({ method: 'DELETE', path: `/images/${image}`, doing, limit: 'late' });
        return true;
      } catch (error) {
        const status = statusOf(error);
        // Podman returns 500 where Docker returns 409.
        if (status === 404 || status === 409 || (status === 500 && /in use|dependent/i.test(messageOf(error)))) return false;
        throw translate(error, doing, endpoint);
      }
    },

    async build(call, progress, signal) {
      const { tag, args, labels: given, context, what } = call;
      const query = {
        ...(tag !== null && { t: tag }),
        dockerfile: 'Dockerfile',
        rm: true,
        forcerm: true,
        // For Podman; Docker ignores it. Otherwise each of its steps would have all labels of the result.
        layers: false,
        buildargs: args,
        labels: given,
      };
      const doing = `build ${what}`;
      const output = readBuild(progress);
      try {
        const call = { method: 'POST', path: '/build', query, file: context, doing, limit: 'idle', signal } as const;
        for await (const line of lines(call)) output.line(line);
      } catch (error) {
        signal.throwIfAborted();
        // What the Engine answers at once is about the Dockerfile, such as an unknown instruction.
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
  const hint = 'Try it manually with "onejob image build"; "--print" shows what onejob builds.';
  return new OnejobError('E_IMAGE_BUILD', `Cannot build ${what}: it failed${at}: ${oneLine(why)}.${last}`, { hint, cause });
}

/** Docker and Podman repeat the whole command of a failed step; its exit code comes last. */
function oneLine(why: string): string {
  const text = why.replaceAll(/\s+/g, ' ').replace(/[.\s]+$/, '');
  const code = /^(?:The command|building at STEP) .*(?:returned a non-zero code:|exit status) (\d+)$/.exec(text)?.[1];
  return code === undefined ? text.slice(0, 500) : `its command returned a non-zero code: ${code}`;
}

/** Lines of a failed build that its error shows. */
const linesShown = 15;
const longestLine = 300;
const longestStep = 70;
/** Longest beginning of an unfinished line; the rest is dropped. */
const longestRest = 64 * 1024;

const answer = z.object({
  stream: z.string().optional(),
  errorDetail: z.object({ message: z.string() }).optional(),
  aux: z.object({ ID: z.string().optional() }).optional().catch(undefined),
});

/** Parses the output of a build. `progress` gets each step that may take time, when it begins. */
export function readBuild(progress: (step: string) => void) {
  const lines: string[] = [];
  let rest = '';

  const take = (said: string): void => {
    const line = stripVTControlCharacters(said);
    // Docker prints `Step 3/9 : RUN …`, Podman `STEP 3/9: RUN …`.
    const [, at, of, instruction] = /^step (\d+)\/(\d+) ?: (.*)$/i.exec(line) ?? [];
    if (instruction !== undefined) {
      output.step = `step ${at}/${of} ${titleOf(instruction)}`;
      // The others take no time.
      if (/^(?:RUN|COPY|ADD|FROM)\b/i.test(instruction)) progress(output.step);
      return;
    }
    // Podman has no `aux` for this; both end with the id.
    const made = /^(?:Successfully built )?([0-9a-f]{12,64})$/.exec(line)?.[1];
    if (made !== undefined) output.id ??= made;
    if (/^(?: ?--->|-->|Removing intermediate container|Successfully )/.test(line) || line.trim() === '') return;
    lines.push(line.length > longestLine ? `${line.slice(0, longestLine)}…` : line);
    if (lines.length > linesShown) lines.shift();
  };

  const output = {
    /** Id of the image; null until it is known. */
    id: null as string | null,
    error: null as string | null,
    /** The current step, for people; null before the first. */
    step: null as string | null,
    /** Takes one JSON line of the answer. @throws SyntaxError or ZodError for any other line */
    line(json: string): void {
      const { stream, errorDetail, aux } = answer.parse(JSON.parse(json));
      if (aux?.ID !== undefined) output.id = aux.ID;
      if (errorDetail !== undefined) output.error = errorDetail.message.trim();
      if (stream === undefined) return;
      // A piece may end in the middle of a line, and progress bars go back to its beginning.
      const pieces = (rest + stream).split(/\r?\n|\r/);
      rest = (pieces.pop() ?? '').slice(0, longestRest);
      pieces.forEach(take);
    },
    tail: (): string[] => [...lines, ...(rest.trim() === '' ? [] : [rest])].slice(-linesShown),
  };
  return output;
}

/** An instruction in a few words: the text after `RUN :` is a title in onejob's own Dockerfiles. */
function titleOf(instruction: string): string {
  const title = /^RUN : ([^;]+);/.exec(instruction)?.[1];
  const words = (title ?? instruction.replace(/^RUN (?:set -\S+;\s*)*/, '')).replaceAll(/\s+/g, ' ').trim();
  return words.length > longestStep ? `${words.slice(0, longestStep)}…` : words;
}
