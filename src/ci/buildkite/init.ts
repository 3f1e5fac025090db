/** `onejob init buildkite`: from nothing to a config file and a token file, asked for on a terminal and checked at the service. */
import type { InitFlags, OpenFrame } from '../../cli/init-frame.ts';
import { inYaml, settle, taken } from '../../cli/init-steps.ts';
import type { Session } from '../../cli/session.ts';
import { OnejobError } from '../../errors.ts';
import { readAgentToken, readEndpoint, readQueue } from './init-answers.ts';
import { isStrange, lookAtBuildkite, type Seen, seeQueue, seeToken } from './init-check.ts';
import { buildkiteDefaults } from './type.ts';

const unseen: Seen = { identity: null, counts: null, lines: [] };

export async function initBuildkite({ output, version, context }: Session, flags: InitFlags, open: OpenFrame): Promise<number> {
  const { endpoint: givenEndpoint = buildkiteDefaults.endpoint, queue: givenQueue = null } = flags.own;
  // What can be judged at once is not refused after a token was typed and the service was asked.
  const endpoint = taken('buildkite', '--endpoint', readEndpoint(givenEndpoint));
  if (givenQueue !== null) taken('buildkite', '--queue', readQueue(givenQueue.trim()));
  using frame = open(givenQueue === null && !flags.yes ? ['--queue QUEUE'] : []);
  const { settling, signal } = frame;

  const look = flags.check ? await lookAtBuildkite(endpoint, version, context.environment.proxies) : null;
  try {
    const { token, seen } = await frame.signIn({
      text: 'Agent token',
      read: readAgentToken,
      refusals: ['E_CI_CREDENTIAL', 'E_CI_DENIED'],
      async see(typed) {
        const found = look === null ? unseen : await seeToken(look, endpoint, typed, signal);
        for (const line of found.lines) output.say(line);
        return found;
      },
    });
    let doubted: string | null = null;
    const queue = await settle(settling, givenQueue, '--queue', {
      text: 'Queue that the agents take jobs from',
      usual: seen.identity?.queue ?? 'default',
      read(typed) {
        const answer = readQueue(typed);
        if (!('value' in answer)) return answer;
        try {
          const lines = seeQueue(seen, answer.value);
          if (isStrange(seen, answer.value) && !flags.force && answer.value !== doubted) {
            const said = lines.join(' ');
            if (settling.person === null || givenQueue !== null || flags.yes) throw unknownQueue(said);
            doubted = answer.value;
            return { again: `${said} Type it again to take it all the same.` };
          }
          for (const line of lines) output.say(line);
          return answer;
        } catch (error) {
          if (settling.person === null || givenQueue !== null || !(error instanceof OnejobError) || error.code === 'E_USAGE')
            throw error;
          return { again: error.message };
        }
      },
    });
    return await frame.finish({
      token,
      ...{ name: 'buildkite', queue },
      keys: (reference) => ({ token: reference, ...(endpoint !== buildkiteDefaults.endpoint && { endpoint }) }),
      // Repositories with addresses of SSH need it; what every checkout needs is put in anyway, and the agent is mounted.
      poolKeys: { image: { base: 'auto', packages: ['openssh-client'] } },
      inPipeline: ['agents:', `  queue: ${inYaml(queue)}`],
    });
  } finally {
    look?.close();
  }
}

function unknownQueue(said: string): OnejobError {
  return new OnejobError('E_USAGE', said, { hint: 'Name one that is there with --queue, or take it all the same with --force.' });
}
