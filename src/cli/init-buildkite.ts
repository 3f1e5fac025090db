/** `onejob init buildkite`: from nothing to a config file and a token file, asked for on a terminal and checked at the service. */
import { buildkiteDefaults } from '../ci/buildkite/type.ts';
import { OnejobError } from '../errors.ts';
import type { Inventory } from '../gpu/inventory.ts';
import type { Person } from './init-ask.ts';
import { type BuildkiteLook, isStrange, lookAtBuildkite, type Seen, seeQueue, seeToken } from './init-buildkite-check.ts';
import { buildkiteFile, readAgentToken, readEndpoint, readQueue } from './init-buildkite-config.ts';
import { type CommonFlags, openFrame } from './init-frame.ts';
import { inYaml, settle, taken, tokenIn } from './init-steps.ts';
import { lookAtCards } from './look-at-cards.ts';
import type { Session } from './session.ts';

/** null where nothing was said. */
export interface BuildkiteFlags extends CommonFlags {
  readonly endpoint: string | null;
  readonly queue: string | null;
}

/** Where a test has something else. */
export interface BuildkiteInitParts {
  readonly look: typeof lookAtBuildkite;
  readonly cards: (session: Session) => Promise<Inventory>;
}

/** How often a token may be wrong. */
const mostTokens = 3;
const what = 'the agent token';
const unseen: Seen = { identity: null, counts: null, lines: [] };

export async function initBuildkite(
  session: Session,
  flags: BuildkiteFlags,
  { look: open, cards }: BuildkiteInitParts = { look: lookAtBuildkite, cards: lookAtCards },
): Promise<number> {
  const { output, version } = session;
  // What can be judged at once is not refused after a token was typed and the service was asked.
  const endpoint = taken('buildkite', '--endpoint', readEndpoint(flags.endpoint ?? buildkiteDefaults.endpoint));
  if (flags.queue !== null) taken('buildkite', '--queue', readQueue(flags.queue.trim()));
  using frame = openFrame(session, flags, { service: 'buildkite', tokenName: 'buildkite.token', what, missing: missing(flags) });
  const { person, settling, tokenFile, hasToken, signal } = frame;
  if (hasToken) output.say(`the token in ${tokenFile} is used`);

  const look = flags.check ? await open(endpoint, version, session.context.environment.proxies) : null;
  try {
    const { token, seen } = await signIn(look, person);
    let doubted: string | null = null;
    const queue = await settle(settling, flags.queue, '--queue', {
      text: 'Queue that the agents take jobs from',
      usual: seen.identity?.queue ?? 'default',
      read(typed) {
        const answer = readQueue(typed);
        if (!('value' in answer)) return answer;
        try {
          const lines = seeQueue(seen, answer.value);
          if (isStrange(seen, answer.value) && !flags.force && answer.value !== doubted) {
            const said = lines.join(' ');
            if (person === null || flags.queue !== null || flags.yes) throw unknownQueue(said);
            doubted = answer.value;
            return { again: `${said} Type it again to take it all the same.` };
          }
          for (const line of lines) output.say(line);
          return answer;
        } catch (error) {
          if (person === null || flags.queue !== null || !(error instanceof OnejobError) || error.code === 'E_USAGE') throw error;
          return { again: error.message };
        }
      },
    });
    return await frame.finish({
      ...{ token, cards },
      file: (answers, inventory) => buildkiteFile({ ...answers, endpoint, queue }, inventory),
      inPipeline: ['agents:', `  queue: ${inYaml(queue)}`],
    });
  } finally {
    look?.close();
  }

  async function signIn(asked: BuildkiteLook | null, who: Person | null): Promise<{ token: string; seen: Seen }> {
    const see = async (token: string): Promise<{ token: string; seen: Seen }> => {
      const seen = asked === null ? unseen : await seeToken(asked, endpoint, token, signal);
      for (const line of seen.lines) output.say(line);
      return { token, seen };
    };
    if (hasToken || who === null) return see(await tokenIn(tokenFile, readAgentToken, what));
    for (let tries = 1; ; tries++) {
      const token = await who.ask({ text: 'Agent token (it is not shown)', usual: null, hidden: true, read: readAgentToken });
      try {
        return await see(token);
      } catch (error) {
        const isRefused = error instanceof OnejobError && (error.code === 'E_CI_CREDENTIAL' || error.code === 'E_CI_DENIED');
        if (!isRefused || tries === mostTokens) throw error;
        output.say(error.message);
      }
    }
  }
}

function unknownQueue(said: string): OnejobError {
  return new OnejobError('E_USAGE', said, { hint: 'Name one that is there with --queue, or take it all the same with --force.' });
}

function missing({ queue, yes }: BuildkiteFlags): string[] {
  return queue === null && !yes ? ['--queue QUEUE'] : [];
}
