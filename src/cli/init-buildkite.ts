/** `onejob init buildkite`: from nothing to a config file and a token file, asked for on a terminal and checked at the service. */
import { existsSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { buildkiteDefaults } from '../config/defaults.ts';
import { OnejobError } from '../errors.ts';
import type { Inventory } from '../gpu/inventory.ts';
import { countCards } from './azure-cards.ts';
import { exitCodes } from './exit.ts';
import { openPerson, type Person } from './init-ask.ts';
import { type BuildkiteLook, isStrange, lookAtBuildkite, type Seen, seeQueue, seeToken } from './init-buildkite-check.ts';
import { type BuildkiteAnswers, buildkiteFile, readAgentToken, readEndpoint, readQueue } from './init-buildkite-config.ts';
import { readAgents, readDay } from './init-config.ts';
import { configPlace, refuseToOverwrite, writePrivate } from './init-files.ts';
import { inYaml, isWanted, refuseWithout, type Settling, settle, taken, tellWritten, tokenIn } from './init-steps.ts';
import { lookAtCards } from './look-at-cards.ts';
import type { Session } from './session.ts';

/** null where nothing was said. */
export interface BuildkiteFlags {
  readonly endpoint: string | null;
  readonly queue: string | null;
  readonly tokenFile: string | null;
  readonly agents: string | null;
  readonly expires: string | null;
  /** Takes what is usual where nothing was said, and asks for no consent. */
  readonly yes: boolean;
  readonly force: boolean;
  /** false: the service is not asked. */
  readonly check: boolean;
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
  const { context, output, version } = session;
  const stdin = context.stdin();
  const isThere = stdin.isTTY === true && !output.json;
  const config = configPlace(session.flags, context.environment);
  if (!flags.force) refuseToOverwrite(config, '--config');
  const tokenFile = flags.tokenFile === null ? join(dirname(config), 'buildkite.token') : resolve(context.cwd, flags.tokenFile);
  const hasToken = existsSync(tokenFile) && !(flags.force && isThere && flags.tokenFile === null);
  if (!isThere) refuseWithout(missing(flags, hasToken), hasToken, tokenFile, what);
  using person = isThere ? openPerson(stdin, context.stderr) : null;
  const settling: Settling = { service: 'buildkite', person, yes: flags.yes };
  // What can be judged at once is not refused after a token was typed and the service was asked.
  const endpoint = taken('buildkite', '--endpoint', readEndpoint(flags.endpoint ?? buildkiteDefaults.endpoint));
  if (flags.queue !== null) taken('buildkite', '--queue', readQueue(flags.queue.trim()));
  if (flags.agents !== null) taken('buildkite', '--agents', readAgents(flags.agents.trim()));
  if (flags.expires !== null) taken('buildkite', '--expires', readDay(flags.expires.trim()));
  const signal = person?.left ?? new AbortController().signal;
  if (hasToken) output.say(`the token in ${tokenFile} is used`);

  const look = flags.check ? await open(endpoint, version) : null;
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
    return await rest(token, queue);
  } finally {
    look?.close();
  }

  async function rest(token: string, queue: string): Promise<number> {
    const inventory = await cards(session);
    const count = countCards(inventory).cards;
    const agents = await settle(settling, flags.agents, '--agents', {
      text: count === 0 ? 'Number of agents' : `Number of agents, or per-device (this host has ${count} for jobs)`,
      usual: count === 0 ? '2' : 'per-device',
      read: readAgents,
    });
    if (agents === 'per-device' && count === 0)
      output.say('this host has no card for jobs now: there will be no agent until it has one');
    const expires = await settle(settling, flags.expires, '--expires', {
      text: 'Last day of the token, such as 2027-05-01, to be warned in time (empty: none, or unknown)',
      usual: '',
      read: readDay,
    });
    const answers: BuildkiteAnswers = { endpoint, queue, agents, tokenFile, expires };
    if (!(await isWanted(settling, hasToken ? config : `${config} and ${tokenFile}`))) {
      output.say('nothing was written');
      return exitCodes.failed;
    }
    const file = buildkiteFile(answers, inventory);
    if (!hasToken) writePrivate(tokenFile, `${token}\n`);
    writePrivate(config, file);
    return tellWritten(session, config, hasToken ? null : tokenFile, ['agents:', `  queue: ${inYaml(queue)}`]);
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

function missing({ queue, agents, yes, tokenFile }: BuildkiteFlags, hasToken: boolean): string[] {
  return [
    ...(queue === null && !yes ? ['--queue QUEUE'] : []),
    ...(tokenFile === null && !hasToken ? ['--token-file FILE'] : []),
    ...(agents === null && !yes ? ['--agents N (or --yes for what is usual)'] : []),
  ];
}
