/** Removes what looks like a password from a line that is stored in clear. It catches most, not all. */

const hidden = '***';
const said = '(?:token|secret|passw(?:or)?d|api[_-]?key|access[_-]?key|private[_-]?key|credentials?)';
const word = `(?:"[^"]*"|'[^']*'|[^\\s"'&;]+)`;

/** Each with its replacement. All are linear in the length of the text. */
const nets: readonly (readonly [RegExp, string])[] = [
  // A login before a host: `https://user:password@host`, up to the last `@`.
  [/(?<![a-z0-9+.-])([a-z][a-z0-9+.-]{0,20}:\/\/)[^\s/"']{1,1000}@/gi, '$1'],
  [/\b(bearer|basic)\s+[^\s"']+/gi, `$1 ${hidden}`],
  [/(\s-u|--user)(\s+|=)[^\s:"']+:[^\s"']+/g, `$1$2${hidden}`],
  // `NAME_TOKEN=…`, `--token=…`, `"password": "…"`: the word ends the name.
  [new RegExp(`((?:\\b|_|-)${said}["']?=)${word}`, 'gi'), `$1${hidden}`],
  [new RegExp(`(--(?:[a-z]{1,20}-){0,4}${said}\\s+)(?!-)${word}`, 'gi'), `$1${hidden}`],
  [/(SECRET_\w{1,200}["']?\s*[:=]\s*)[^\s"']+/g, `$1${hidden}`],
  // Known prefixes of GitHub, GitLab, Buildkite, Slack, Stripe, AWS and npm, and signed tokens.
  [/\b(?:gh[opsur]_|github_pat_|glpat-|bk(?:ct|ua|aj)_|xox[abps]-|sk_live_|npm_|hf_)[\w-]{8,}/g, hidden],
  [/\bAKIA[0-9A-Z]{16}\b|\beyJ[\w-]{10,}\.[\w-]+\.[\w-]*/g, hidden],
];

export function masked(text: string): string {
  return nets.reduce((line, [pattern, instead]) => line.replaceAll(pattern, instead), text);
}
