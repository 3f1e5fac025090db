/** How this agent comes to a bad end with a job, by a line of the job's script: `# standin-agent: crash`. And how patient it is. */

/** `crash` (SIGKILL to itself) · `vanish` (ends, exit 0, and tells nobody) · `eat-memory` (until something ends it, 2 GiB at most). */
const known = new Set(['crash', 'vanish', 'eat-memory']);

/** The bad end that a job asks for; null: none. @throws Error for an unknown one: a test that misspells it would show nothing */
export function badEndOf(script) {
  const name = /^# standin-agent: (.+)$/m.exec(script)?.[1].trim() ?? null;
  if (name !== null && !known.has(name)) throw new Error(`"# standin-agent:" names an unknown end: ${name}`);
  return name;
}

/** What the real agent would wait, in ms, at this agent's pace: a hundredth. */
export function wait(ms) {
  return Math.ceil(ms / 100);
}
