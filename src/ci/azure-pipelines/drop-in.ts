/** `onejob azure`: takes what the Python manager of Azure agents took, and leads this host with it in the foreground. */
import { hostname } from 'node:os';
import { exitCodes } from '../../cli/exit.ts';
import { configSource, type Session } from '../../cli/session.ts';
import { lookAtCards, shareCards } from '../../cli/share-cards.ts';
import { up } from '../../cli/up.ts';
import { checkConfig, configError } from '../../config/load.ts';
import { OnejobError } from '../../errors.ts';
import { checkName, type DropIn, dropInConfig, dropInFile, dropInVolumes, pollTime } from './drop-in-config.ts';
import { givenToken } from './drop-in-token.ts';
import { azureUrlToKeep, parseAzureUrl } from './url.ts';

/** What was typed. */
export interface AzureArguments {
  readonly token: string;
  readonly url: string;
  readonly pool: string;
  readonly agents: number;
  /** null: the host's name. */
  readonly name: string | null;
  readonly image: string | null;
  /** s; null when it was not said. */
  readonly timeout: number | null;
  readonly pollTime: number | null;
  readonly volumes: readonly string[];
  readonly printConfig: boolean;
}

/** Runs the daemon; with `printConfig` prints the file that says the same instead. */
export async function azure(session: Session, typed: AzureArguments, cards = lookAtCards): Promise<number> {
  const { context, output, flags } = session;
  if (flags.config !== undefined) {
    throw new OnejobError('E_USAGE', '--config goes with "onejob up"; "onejob azure" has all of its config on the command line.', {
      hint: 'Type "onejob up --config FILE", or leave --config out.',
    });
  }
  const token = await givenToken(typed.token, context);
  const name = typed.name ?? hostname();
  checkName(name, typed.agents);
  const { url, remark } = addressOf(typed.url);
  const volumes = dropInVolumes(typed.volumes, context.cwd);
  const shared = shareCards(typed.agents, await cards(session));
  const poll = typed.pollTime === null ? null : pollTime(typed.pollTime);
  const given: DropIn = { url, pool: typed.pool, agents: typed.agents, name, image: typed.image, poll, volumes, cards: shared };

  const instead = dropInConfig(given, token.reference);
  const { errors } = await checkConfig({ ...configSource(session), instead, secrets: 'skip' });
  if (errors.length > 0) throw configError(errors);

  if (token.warning !== null) output.say(`warning: ${token.warning}`);
  if (remark !== null) output.say(remark);
  for (const line of ignored(typed, poll)) output.say(line);
  output.say(shared.line);
  if (!typed.printConfig) return up(session, { temporary: false, instead });
  await output.print(dropInFile(given, token.written, token.remark));
  return exitCodes.ok;
}

function addressOf(typed: string): { url: string; remark: string | null } {
  const parsed = parseAzureUrl(typed);
  if (parsed.ok) return { url: parsed.value, remark: null };
  // The Python manager was documented to take the address of a project; agents belong to the organisation all the same.
  const url = azureUrlToKeep(typed);
  if (url !== null) return { url, remark: `the address ${parsed.why.replace(/; keep .*$/, '')}; what is used of it is ${url}` };
  const why = parsed.why.startsWith('expected') ? `is none: ${parsed.why}` : parsed.why;
  throw new OnejobError('E_USAGE', `The address (second argument) ${why}.`, {
    hint: 'Type onejob azure PAT URL POOL, such as: onejob azure @pat.txt https://dev.azure.com/acme gpu',
  });
}

/** Options that the Python manager read and then ignored, or that mean something else here. */
function ignored({ timeout, pollTime: asked }: AzureArguments, poll: number | null): string[] {
  const lines = [];
  if (timeout !== null) {
    lines.push(
      '--timeout changes nothing, as it did in the Python manager: onejob has a limit for each call to the Engine by its kind, so that a pull may take long and a look may not',
    );
  }
  if (asked !== null && poll !== null && poll > asked * 1000) {
    lines.push(
      `--poll-time ${asked}: the service is asked every ${poll / 1000} s, which is the least; a new agent is started at once when one ends, without any polling`,
    );
  }
  return lines;
}
