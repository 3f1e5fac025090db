/** What `doctor` says of the broker, which carries what agents say, and of the agent's program. */
import { describeProxies, type Proxies } from '../../config/proxies.ts';
import type { Clock } from '../../core/clock.ts';
import { OnejobError, toFailure } from '../../errors.ts';
import type { Finding } from '../../runtimes/runtime.ts';
import type { AgentBinaryState } from './agent-binary.ts';
import { protocolVersion } from './broker/protocol.ts';
import type { BrokerLook } from './broker-calls.ts';

/** ms that one that is being started may take, and between two looks. */
const [startPatience, lookAgain] = [5_000, 200];

/** One that is just being started is waited for. @throws OnejobError E_BROKER */
export async function brokerOnceThere(
  look: (signal: AbortSignal) => Promise<BrokerLook>,
  clock: Clock,
  signal: AbortSignal,
): Promise<BrokerLook> {
  const until = clock.now() + startPatience;
  for (;;) {
    try {
      return await look(signal);
    } catch (error) {
      if (signal.aborted || clock.now() >= until) throw error;
      await new Promise<void>((resolve) => void clock.after(lookAgain, resolve));
    }
  }
}

/** How many agents are named. */
const named = 5;

/** `version` and `proxies`: of this onejob. */
export function brokerFindings(
  service: string,
  look: BrokerLook,
  { version, proxies }: { readonly version: string; readonly proxies: Proxies },
): Finding[] {
  const subject = `service ${service}`;
  const mine = look.agents.filter((agent) => agent.service === service && agent.phase !== 'gone');
  const working = mine.filter(({ phase }) => carried.has(phase)).length;
  const found: Finding[] = [
    {
      level: 'ok',
      subject,
      message: `Its broker is process ${look.pid}, onejob ${look.version}, port ${look.port}: ${count(mine.length, 'agent')}, ${working} of them with a job.`,
      hint: null,
    },
  ];
  if (look.protocol !== protocolVersion || look.version !== version) {
    found.push({
      level: 'warning',
      subject,
      message: `Its broker is of onejob ${look.version}, and this is ${version}.`,
      hint: `It was left by another onejob. Type "kill ${look.pid}": it ends once its last job is over, and the right one is started.`,
    });
  }
  const [theirs, ours] = [look.proxy ?? null, describeProxies(proxies)];
  if (theirs !== ours) {
    const through = (proxy: string | null): string => (proxy === null ? 'directly' : `through the proxy ${proxy}`);
    found.push({
      level: 'warning',
      subject,
      message: `Its broker reaches services ${through(theirs)}, and this onejob ${through(ours)}.`,
      hint: `It keeps what it was started with. Type "kill ${look.pid}": it ends once its last job is over, and another is started.`,
    });
  }
  for (const health of look.services) {
    if (health.service !== service || health.kind === 'ok') continue;
    const message = sentence(health.why ?? 'the service does not answer');
    const hint =
      health.kind === 'refused' ? 'Give "token" one that may register agents in these queues.' : 'It is tried again by itself.';
    found.push({ level: 'error', subject, message, hint });
  }
  const troubled = mine.filter(({ problem }) => problem !== null);
  for (const { name, problem } of troubled.slice(0, named)) {
    const hint = 'It is tried again by itself; "broker.log" in the state directory has more.';
    found.push({ level: 'warning', subject, message: sentence(`Agent ${name}: ${problem}`), hint });
  }
  if (troubled.length > named) {
    const message = `${count(troubled.length - named, 'more agent')} with a problem.`;
    found.push({ level: 'warning', subject, message, hint: '"broker.log" in the state directory names them.' });
  }
  return found;
}

const carried: ReadonlySet<string> = new Set(['accepting', 'accepted', 'handed', 'connected', 'running']);

/** `temporary`: nobody has started one. */
export function brokerAbsent(service: string, error: unknown, temporary: boolean): Finding {
  if (temporary) {
    const message = 'Its broker is not there: no daemon runs, and "onejob up" starts both.';
    return { level: 'ok', subject: `service ${service}`, message, hint: null };
  }
  const { message } = error instanceof OnejobError ? error : toFailure(error);
  const hint = error instanceof OnejobError ? error.hint : null;
  return { level: 'error', subject: `service ${service}`, message, hint: hint ?? 'It is started again by itself.' };
}

/** First version that can be told not to wait at a stream, which has no place behind a broker (agent changelog). */
const oldest = '3.119.1';

/** `from`: as config names it; null for the project's release. */
export function programFindings(service: string, state: AgentBinaryState, from: string | null): Finding[] {
  const subject = `service ${service}`;
  switch (state.kind) {
    // Each pool's image is looked at itself.
    case 'image':
      return [];
    case 'unknown':
    case 'preparing':
      return [{ level: 'warning', subject, message: 'The agent is being fetched and checked.', hint: 'Ask again in a moment.' }];
    case 'failed': {
      const { code, message } = state.failure;
      return [{ level: 'error', subject, message: `${message} (${code})`, hint: howToHave(from) }];
    }
    case 'ready': {
      const message = `The agent is ${state.version}, from ${from ?? "Buildkite's releases"}, checked.`;
      return [{ level: 'ok', subject, message, hint: null }, ...ageFindings(subject, state.version)];
    }
  }
}

/** An agent that is on this host already can be named. */
function howToHave(from: string | null): string {
  return from === null
    ? 'Where this host reaches no releases, name the program: write "agent: { from: /path/to/buildkite-agent }" into the service.'
    : 'Look at "agent" of the service; "agent: { from: /path/to/buildkite-agent }" names a program that is on this host already.';
}

export function ageFindings(subject: string, version: string): Finding[] {
  if (!isOlder(version, oldest)) return [];
  const message = `The agent is ${version}; before ${oldest} it may wait at a stream that the broker does not have.`;
  return [
    { level: 'warning', subject, message, hint: 'Use a newer agent: "agent: { version: … }" of the service, or of the image.' },
  ];
}

function isOlder(version: string, than: string): boolean {
  const [a, b] = [version, than].map((one) => one.split('-')[0]?.split('.').map(Number) ?? []);
  for (const [index, wanted] of (b ?? []).entries()) {
    const found = a?.[index] ?? 0;
    if (found !== wanted) return found < wanted;
  }
  return false;
}

function count(n: number, word: string): string {
  return n === 1 ? `one ${word}` : `${n} ${word}s`;
}

function sentence(text: string): string {
  return `${text.slice(0, 1).toUpperCase()}${text.slice(1)}${/[.?!]$/.test(text) ? '' : '.'}`;
}
