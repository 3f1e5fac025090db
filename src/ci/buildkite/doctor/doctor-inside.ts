/**
 * What an agent would find in its sandbox: a way to the service or the filter, programs that jobs need, and writable folders. A
 * script looks from inside. It tries the way with the agent itself, or with bash if there is no agent.
 */
import { networkInterfaces } from 'node:os';
import { stripVTControlCharacters } from 'node:util';
import { type Finding, fine, problem, warning } from '../../../base/finding.ts';
import { brief } from '../../../http/exchange.ts';
import { noProxyFor } from '../../kit/mounted.ts';
import { findsProgram, insideAgent } from '../agent/script.ts';

/** s until an address that does not answer is given up. */
const patience = 6;

/**
 * For any `sh`. Its token is invalid, so a refusal shows that the way works. `way` null: not tried. `seconds`: until an address
 * that does not answer is given up.
 */
export function lookScript(way: Pick<ApiWay, 'endpoint' | 'isFilter'> | null, seconds = patience): string {
  const { hostname, port, protocol, pathname } = new URL(way?.endpoint ?? 'http://localhost/v3');
  const host = hostname.replace(/^\[(.*)\]$/, '$1');
  const call = [
    ...(way?.isFilter === true ? noProxyFor(way.endpoint) : []),
    `export BUILDKITE_AGENT_ENDPOINT='${way?.endpoint}' BUILDKITE_AGENT_ACCESS_TOKEN=look BUILDKITE_AGENT_CONFIG=/dev/null`,
    'if buildkite-agent --version >/dev/null 2>&1; then',
    '  exec buildkite-agent meta-data get look --job 00000000-0000-0000-0000-000000000000 --no-color',
    // bash speaks no TLS.
    `elif [ ${protocol} = http: ] && command -v bash >/dev/null 2>&1; then`,
    `  exec bash -c 'exec 3<>"/dev/tcp/${host}/${port === '' ? 80 : port}" || exit`,
    `    printf "GET ${pathname}/ping HTTP/1.1\\r\\nHost: look\\r\\nAuthorization: Token look\\r\\nConnection: close\\r\\n\\r\\n" >&3`,
    '    while IFS= read -r line <&3 || [ -n "$line" ]; do printf "%s\\n" "$line"; line=; done\'',
    'else echo nothing-to-try-with; fi',
  ];
  return [
    findsProgram,
    'for p in bash git buildkite-agent; do command -v "$p" >/dev/null 2>&1 && echo "has $p"; done',
    'v=$(buildkite-agent --version 2>/dev/null) && echo "agent $v"',
    't=${TMPDIR:-/tmp}; f=$t/.onejob-look-$$',
    'if (printf "#!/bin/sh\\nexit 0\\n" >"$f" && chmod 700 "$f" && "$f") 2>/dev/null; then echo "tmp yes $t"; else echo "tmp no $t"; fi',
    'rm -f "$f"',
    'h=${HOME:-}; f=$h/.onejob-look-$$',
    'if [ -n "$h" ] && (: >"$f") 2>/dev/null; then echo "home yes $h"; else echo "home no $h"; fi',
    '[ -n "$h" ] && rm -f "$f"',
    ...(way === null
      ? []
      : [
          'echo reach',
          `( ${call.join('\n')}\n) 2>&1 & p=$!`,
          `( trap 'kill "$s"; exit' TERM; sleep ${seconds} & s=$!; wait "$s"; kill -9 "$p" ) >/dev/null 2>&1 & w=$!`,
          'wait "$p" 2>/dev/null || :',
          'kill "$w" 2>/dev/null || :',
        ]),
    ':',
  ].join('\n');
}

interface Folder {
  readonly path: string;
  readonly works: boolean;
}

/** What a look from inside found. */
export interface Inside {
  readonly programs: ReadonlySet<string>;
  /** Version of the agent; null: it does not run. */
  readonly agent: string | null;
  readonly temporary: Folder | null;
  readonly home: Folder | null;
  /** The answer; null: there was nothing to try it with. */
  readonly reached: string | null;
}

export function readLook(said: string): Inside {
  const [facts = '', reached = null] = said.split(/^reach$/m);
  const lines = facts.split('\n');
  const after = (word: string): string[] =>
    lines.flatMap((line) => (line.startsWith(`${word} `) ? [line.slice(word.length + 1).trim()] : []));
  const place = (word: string): Folder | null => {
    const [found] = after(word);
    return found === undefined ? null : { path: found.replace(/^(yes|no) ?/, ''), works: found.startsWith('yes') };
  };
  const version = /\bversion v?(\d+\.\d+\.\d+[^\s,+]*)/.exec(after('agent')[0] ?? '')?.[1] ?? null;
  const tried = reached?.trim() ?? null;
  return {
    programs: new Set(after('has')),
    agent: version,
    temporary: place('tmp'),
    home: place('home'),
    reached: tried === 'nothing-to-try-with' ? null : tried,
  };
}

export interface ApiWay {
  /** Where the agent calls, as its sandbox sees it. */
  readonly endpoint: string;
  /** The filter of this host, for untrusted jobs; else the service. */
  readonly isFilter: boolean;
  readonly network: string;
}

/** `whose`: `agents of pool gpu`. */
export function wayFinding(subject: string, whose: string, way: ApiWay, found: Inside): Finding {
  const { endpoint, isFilter, network } = way;
  const what = isFilter ? `The filter at ${new URL(endpoint).host}` : endpoint;
  if (found.reached === null) {
    const message = `Cannot check whether ${whose} can reach ${isFilter ? 'the filter' : endpoint}: their sandbox has no agent to try it with.`;
    return warning(subject, message, 'Check "agent" of the service.');
  }
  if (/\b401\b/.test(found.reached)) return fine(subject, `${what} can be reached from network "${network}" by ${whose}.`);
  const line = found.reached.split('\n').findLast((one) => one.trim() !== '') ?? '';
  const why =
    line === ''
      ? `no answer within ${patience} s`
      : (reason.exec(line)?.[0] ?? brief(stripVTControlCharacters(line)).replace(/\.$/, ''));
  const message = `${what} cannot be reached from network "${network}" by ${whose}: ${why}.`;
  const hint = isFilter
    ? howToOpen(way)
    : 'Jobs connect to the service themselves: give their network a route to it, set the proxy that leads there in "env" of the pool (HTTPS_PROXY), and add CA certificates to the image.';
  return problem(subject, message, hint);
}

/** Why a connection failed, in the words of the agent or bash. */
const reason = /connection refused|i\/o timeout|connection timed out|no route to host|network is unreachable/i;

function howToOpen({ endpoint, network }: ApiWay): string {
  const { hostname, port } = new URL(endpoint);
  const address = hostname.replace(/^\[(.*)\]$/, '$1');
  const bridge = interfaceOf(address);
  const from = bridge === null ? ['', ''] : [` in on ${bridge}`, ` -i ${bridge}`];
  const ufw = `ufw allow${from[0]} to ${address} port ${port} proto tcp`;
  const iptables = `iptables -I INPUT${from[1]} -d ${address} -p tcp --dport ${port} -j ACCEPT`;
  const isOwn = network === 'default' || network === 'internet';
  const lasting = isOwn
    ? 'The port stays the same; onejob recreates the network after "onejob down"; a network of your own ("network: NAME") stays.'
    : 'The port stays the same.';
  return `Open this host's firewall for it: type "${ufw}" if ufw manages it, else "${iptables}". ${lasting}`;
}

/** The interface of this host with that address, such as a bridge. */
function interfaceOf(address: string): string | null {
  const found = Object.entries(networkInterfaces()).find(([, all]) => all?.some((one) => one.address === address));
  return found === undefined || found[0] === 'lo' ? null : found[0];
}

/** What jobs would lack. `mounted`: the agent comes from this host, not from the image. `isWithoutGit`: nothing is checked out. */
export function lackFindings(
  subject: string,
  found: Inside,
  about: { readonly image: string | null; readonly mounted: boolean; readonly isWithoutGit: boolean },
): Finding[] {
  const { image, mounted, isWithoutGit } = about;
  const where = image === null ? 'this host' : `image "${image}"`;
  const list: Finding[] = [];
  const needed = isWithoutGit ? ['bash'] : ['bash', 'git'];
  const missing = needed.filter((program) => !found.programs.has(program));
  if (missing.length > 0) {
    const what = missing.join(' and ');
    const none = missing.length === 1 ? `no ${what}` : `neither ${missing.join(' nor ')}`;
    const hint =
      image === null
        ? `Install ${what} on this host.`
        : `Add ${missing.length === 1 ? 'it' : 'them'} to the image, or write image: { base: "${image}", packages: [${missing.join(', ')}] }.`;
    const needs = missing.includes('bash') ? 'The agent runs commands and hooks with bash' : 'The agent checks out with git';
    const orSkip = missing.includes('git') ? ' If jobs check nothing out, set BUILDKITE_SKIP_CHECKOUT: "true" in "env".' : '';
    const say = missing.includes('git') ? problem : warning;
    list.push(say(subject, `There is ${none} in ${where}. ${needs}.`, `${hint}${orSkip}`));
  }
  if (found.agent === null) {
    const there = found.programs.has('buildkite-agent');
    const message = there
      ? `buildkite-agent does not run in ${where}.`
      : `There is no buildkite-agent in ${where}${mounted ? `, although it should be mounted at ${insideAgent.program}` : ''}.`;
    const hint = mounted
      ? 'Check whether the image has the architecture of this host, and check "agent" of the service.'
      : 'Put the agent into the image, or remove "from: image" from "agent" of the service: then onejob mounts it.';
    list.push(problem(subject, message, hint));
  }
  if (found.temporary !== null && !found.temporary.works) {
    const { path } = found.temporary;
    const message = `Cannot run anything in ${path}, where the agent keeps the scripts that wrap hooks.`;
    const hint = `Mount it with "exec" (tmpfs: { "${path}": "exec" }), make it writable for the sandbox's user, or set TMPDIR in "env".`;
    list.push(problem(subject, message, hint));
  }
  if (found.home !== null && !found.home.works) {
    const message =
      found.home.path === ''
        ? 'The sandbox has no HOME; git and many tools need one.'
        : `Cannot write to HOME, ${found.home.path}.`;
    list.push(warning(subject, message, 'Set HOME in "env" to a folder that the sandbox\'s user can write to.'));
  }
  return list.length > 0 ? list : [fine(subject, `Its sandboxes have what jobs need: ${needed.join(', ')}, agent ${found.agent}.`)];
}
