/**
 * Which pool's agents a job may go to. Where jobs are acquired nobody but us looks at that: the service gives a reserved job to
 * whichever agent names it (docs page `agent/cli/reference/start`, `--acquire-job`).
 */

/** Whether tags meet every rule. `key=*` is met by any value; a rule or a tag without a value is about `true`. */
export function fits(rules: readonly string[], queue: string, tags: readonly string[]): boolean {
  const own = [`queue=${queue}`, ...tags].map(split);
  return rules.every((rule) => {
    const [key, value] = split(rule);
    return own.some(([name, has]) => name === key && (value === '*' || has === value));
  });
}

function split(tag: string): readonly [string, string] {
  const at = tag.indexOf('=');
  return at < 0 ? [tag.trim(), 'true'] : [tag.slice(0, at).trim(), tag.slice(at + 1).trim()];
}
