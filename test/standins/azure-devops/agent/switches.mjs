/**
 * How this agent misbehaves, and how patient it is: the comma list of the environment variable STANDIN_AGENT, and for a job
 * also a line of its script, `# standin-agent: crash`.
 *
 * At the start: `end=CODE` ends at once · `never-online` never opens a session · `slow-start=MS` waits before it does ·
 * `exit3`, `exit4` end as an agent that was told to update · `real-pace` waits as long as the real one does (else a hundredth) ·
 * `ignore-term` does not end on SIGTERM and SIGINT.
 * With a job: `fail` · `hang` (until it is cancelled) · `crash` (SIGKILL to itself) · `vanish` (ends, exit 0, and tells nobody) ·
 * `eat-memory` (until something ends it, 2 GiB at most) · `second` (takes a second job, though it runs once).
 */
const known = new Set(
  'end never-online slow-start exit3 exit4 real-pace ignore-term fail hang crash vanish eat-memory second'.split(' '),
);

/** Reads a comma list. An unknown switch ends the agent: a test that misspells one would show nothing. */
export function readSwitches(list = '') {
  const set = new Map(
    list
      .split(',')
      .map((item) => item.trim().split('='))
      .filter(([name]) => name !== '')
      .map(([name, value]) => [name, value ?? '']),
  );
  for (const name of set.keys()) if (!known.has(name)) throw new Error(`STANDIN_AGENT has an unknown switch: ${name}`);
  const pace = set.has('real-pace') ? 1 : 0.01;
  return {
    has: (name) => set.has(name),
    number: (name) => Number(set.get(name) ?? 0),
    /** What the real agent would wait, in ms, at this agent's pace. */
    wait: (ms) => Math.ceil(ms * pace),
    /** These and those that the job's script asks for. */
    with: (script) => readSwitches([list, /^# standin-agent: (.+)$/m.exec(script)?.[1] ?? ''].join(',')),
  };
}
