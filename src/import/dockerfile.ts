/** What of a Dockerfile can become `base` and `packages` of a config, and what cannot. */

export interface Recipe {
  /** What it builds on; null when that cannot be known. */
  readonly base: string | null;
  readonly packages: readonly string[];
  /** Whether it puts a private key for secrets into the image. */
  readonly hasSecretsKey: boolean;
  /** Whether it puts a Buildkite agent, or hooks of one, into the image. */
  readonly hasAgent: boolean;
  /** Instructions that are left out and mean something. */
  readonly left: readonly { readonly line: number; readonly text: string }[];
}

/** Only served to install the agent from its own repository, or comes with what onejob mounts. */
const notNeeded = new Set(['buildkite-agent', 'apt-transport-https', 'tini', 'dumb-init']);

/** Never throws. `args`: of the Compose file; they win over those of the Dockerfile. */
export function readDockerfile(text: string, args: ReadonlyMap<string, string>): Recipe {
  const variables = new Map<string, string>();
  const packages = new Set<string>();
  const left: { line: number; text: string }[] = [];
  const stages = new Map<string, string | null>();
  let base: string | null = null;
  for (const { line, word, rest } of instructions(text)) {
    const put = (written: string) => fill(written, variables);
    if (word === 'ARG') {
      const [, name = '', , value] = /^([A-Za-z_]\w*)(=(.*))?$/s.exec(rest) ?? [];
      const given = args.get(name) ?? (value === undefined ? undefined : unquote(value));
      if (given !== undefined) variables.set(name, given);
    } else if (word === 'FROM') {
      const [, from = '', alias] = /^(?:--\S+\s+)*(\S+)(?:\s+as\s+(\S+))?/i.exec(rest) ?? [];
      const image = put(from);
      base = stages.get(image.toLowerCase()) ?? (image === '' || image.includes('$') ? null : image);
      if (alias !== undefined) stages.set(alias.toLowerCase(), base);
      packages.clear();
    } else if (word === 'RUN') {
      const { found, isAll } = installed(rest);
      for (const one of found) packages.add(one);
      if (!isAll && !/buildkite/i.test(rest)) left.push({ line, text: `RUN ${rest}` });
    } else if (!['ENTRYPOINT', 'CMD', 'LABEL', 'MAINTAINER', 'STOPSIGNAL', 'SHELL', 'EXPOSE', 'HEALTHCHECK'].includes(word)) {
      if (!/private\.key|buildkite/i.test(rest)) left.push({ line, text: `${word} ${rest}` });
    }
  }
  return {
    base,
    packages: [...packages].filter((one) => !notNeeded.has(one)),
    hasSecretsKey: /\b\S*private\.key\b/.test(text),
    hasAgent: /buildkite-agent/i.test(text),
    left: left.map((one) => ({ ...one, text: one.text.replaceAll(/\s+/g, ' ') })),
  };
}

function instructions(text: string): { line: number; word: string; rest: string }[] {
  const found: { line: number; word: string; rest: string }[] = [];
  let open: { line: number; text: string } | null = null;
  for (const [at, raw] of text.split(/\r?\n/).entries()) {
    if (/^\s*#/.test(raw) || (open === null && raw.trim() === '')) continue;
    const goesOn = /\\\s*$/.test(raw);
    const part = raw.replace(/\\\s*$/, ' ');
    open = open === null ? { line: at + 1, text: part } : { line: open.line, text: open.text + part };
    if (goesOn) continue;
    const [, word = '', rest = ''] = /^\s*(\w+)\s*(.*)$/s.exec(open.text) ?? [];
    found.push({ line: open.line, word: word.toUpperCase(), rest: rest.trim() });
    open = null;
  }
  return found;
}

/** Packages that a `RUN` installs, and whether it does nothing else. */
function installed(command: string): { found: string[]; isAll: boolean } {
  const found: string[] = [];
  let isAll = true;
  for (const part of command.split(/&&|;|\|\||\n/)) {
    const words = part
      .trim()
      .split(/\s+/)
      .filter((word) => !/^[A-Z_]+=/.test(word) && word !== 'sudo' && word !== '');
    const [tool = '', ...rest] = words;
    if (/^(apt-get|apt|dnf|yum|microdnf|apk|zypper)$/.test(tool)) {
      const at = rest.findIndex((word) => word === 'install' || word === 'add');
      if (at < 0) continue;
      const names = rest.slice(at + 1).filter((word) => !word.startsWith('-'));
      const good = names.filter((name) => /^[a-z0-9][a-z0-9+.:=~_-]*$/i.test(name));
      if (good.length < names.length) isAll = false;
      found.push(...good);
    } else if (tool !== '' && !/^(rm|true|:|set|echo)$/.test(tool)) isAll = false;
  }
  return { found, isAll };
}

function fill(text: string, variables: ReadonlyMap<string, string>): string {
  return text.replaceAll(
    /\$(?:\{([A-Za-z_]\w*)(?::?-([^}]*))?\}|([A-Za-z_]\w*))/g,
    (whole, braced?: string, other?: string, plain?: string) => {
      return variables.get(braced ?? plain ?? '') ?? other ?? whole;
    },
  );
}

function unquote(text: string): string {
  return /^(["'])(.*)\1$/s.exec(text.trim())?.[2] ?? text.trim();
}
