/**
 * Delivers a message: a webhook or a command, in bounded time. The address of a webhook often is a secret, so only its host is ever
 * shown.
 */

import { attempt, OnejobError } from '../base/errors.ts';
import type { Variables } from '../base/variables.ts';
import { masked } from '../ci/kit/masked.ts';
import type { NotifyConfig } from '../config/config.ts';
import type { Environment } from '../config/environment.ts';
import type { Clock } from '../core/clock.ts';
import { brief, exchange, NoAnswer } from '../http/exchange.ts';
import { readSecret, secretPlace } from '../schema/secret-reference.ts';
import { webhookHost, webhookProblem } from '../schema/webhook.ts';
import { runOwners } from '../system/group.ts';
import type { Message } from './message.ts';

export interface SendParts {
  readonly notify: NotifyConfig;
  readonly env: Pick<Environment, 'path' | 'home'>;
  readonly clock: Clock;
  /** Makes the request to a webhook. */
  readonly fetch: typeof fetch;
  /** Where secrets are looked up; by default the process' own. */
  readonly variables?: Variables | undefined;
}

/** Bytes of an answer. */
const mostAnswer = 1 << 20;

/** Where messages go, for people: `command /usr/local/bin/tell-us`, `webhook https://hooks.example`. */
export function targetOf({ webhook, command }: NotifyConfig): string {
  if (command !== null) return `command ${command[0]}`;
  if (typeof webhook === 'string') return `webhook ${webhookHost(webhook)}`;
  return webhook === null ? 'nowhere' : `the webhook in ${secretPlace(webhook)}`;
}

/** Returns what came back, in one line. @throws OnejobError E_NOTIFY (retry), E_SECRET; the reason of `signal` */
export async function send(message: Message, parts: SendParts, signal: AbortSignal): Promise<string> {
  const { command, webhook } = parts.notify;
  if (command !== null) return runCommand(command, message, parts, signal);
  if (webhook === null) return 'nobody was told';
  const address = typeof webhook === 'string' ? webhook : (await readSecret(webhook, parts.variables)).trim();
  return post(address, message, parts, signal);
}

async function runCommand(
  command: NonNullable<NotifyConfig['command']>,
  message: Message,
  { notify: { timeout }, env: { path, home }, clock }: SendParts,
  signal: AbortSignal,
): Promise<string> {
  const env = { PATH: path, HOME: home, LC_ALL: 'C.UTF-8', ONEJOB_SUBJECT: message.title, ONEJOB_TEXT: message.text };
  const input = `${JSON.stringify(message)}\n`;
  // Such as mail(1) of bsd-mailx, whose sender continues after it has ended.
  const { why, output } = await runOwners({ command, env, input, timeout, clock, signal, background: true });
  signal.throwIfAborted();
  const said = brief(masked(output));
  if (why === null) return said === '' ? 'it exited with 0' : said;
  throw failed(`command ${command[0]}`, `${why}${said === '' ? '' : `: ${said}`}`, 'See "notify" in the config.');
}

async function post(
  address: string,
  message: Message,
  { notify: { timeout }, clock, fetch }: SendParts,
  signal: AbortSignal,
): Promise<string> {
  const wrong = webhookProblem(address);
  if (wrong !== null) throw failed('the webhook', `its address ${wrong}`, 'See "notify" in the config.');
  const where = `webhook ${webhookHost(address)}`;
  const headers = { 'content-type': 'application/json', 'user-agent': 'onejob' };
  const request = { method: 'POST', url: address, headers, body: JSON.stringify(message) } as const;
  try {
    const { status, text } = await exchange(request, { clock, fetch, timeout, most: mostAnswer }, signal);
    // Cut at last: half of a secret is not recognised.
    const said = brief(hidden(text, address));
    if (status >= 200 && status < 300) return `it answered ${status}${said === '' ? '' : `: ${said}`}`;
    const moved = status >= 300 && status < 400 ? ', and onejob follows no redirects' : '';
    throw failed(
      where,
      `it answered ${status}${moved}${said === '' ? '' : `: ${said}`}`,
      'Look at its address, and at what answers there.',
    );
  } catch (error) {
    if (error instanceof NoAnswer) throw failed(where, error.about.why, error.about.hint);
    throw error;
  }
}

function failed(where: string, why: string, hint: string): OnejobError {
  return new OnejobError('E_NOTIFY', `Cannot deliver a message to ${where}: ${why}.`, { hint, retry: true });
}

/** A page about an error may quote the address, all or in part, as it is or decoded. */
function hidden(said: string, address: string): string {
  const { pathname, search, origin } = new URL(address);
  const written = [address.slice(origin.length), `${pathname}${search}`, pathname];
  const parts = written.flatMap((one) => one.split(/[/?&=#]/)).filter((part) => part.length >= 6);
  const forms = [...written, ...parts].flatMap((one) => [
    one,
    attempt(() => decodeURIComponent(one)) ?? one,
    encodeURIComponent(one),
  ]);
  const longestFirst = [...new Set(forms)].filter((one) => one.length > 1).toSorted((one, other) => other.length - one.length);
  return masked(longestFirst.reduce((text, one) => text.replaceAll(one, '…'), said));
}
