/** `extends` and override files: one service put on top of another. https://docs.docker.com/reference/compose-file/merge/ */
import { isMap, pairsOf } from './plain.ts';

type Service = Readonly<Record<string, unknown>>;

/** Keys whose later value takes the place of the earlier one as a whole. */
const whole = new Set(['command', 'entrypoint', 'healthcheck', 'env_file', 'tags']);

/** `upper` wins; lists grow, but for those that mean one command, and variables are told apart by name. */
export function overlay(lower: Service, upper: Service): Record<string, unknown> {
  const merged: Record<string, unknown> = { ...lower };
  for (const [key, value] of Object.entries(upper)) {
    const before = merged[key];
    if (value === null || value === undefined) continue;
    if (before === undefined || before === null || whole.has(key)) merged[key] = value;
    else if (key === 'environment' || key === 'args') merged[key] = variables(before, value);
    else if (key === 'build') merged[key] = overlay(asBuild(before), asBuild(value));
    else if (Array.isArray(before) && Array.isArray(value))
      merged[key] = key === 'volumes' ? byTarget(before, value) : [...before, ...value];
    else if (isMap(before) && isMap(value)) merged[key] = overlay(before, value);
    else merged[key] = value;
  }
  return merged;
}

function asBuild(build: unknown): Service {
  return isMap(build) ? build : { context: build };
}

function variables(lower: unknown, upper: unknown): Record<string, string | null> {
  return Object.fromEntries([...pairsOf(lower), ...pairsOf(upper)].map(({ key, value }) => [key, value]));
}

function byTarget(lower: readonly unknown[], upper: readonly unknown[]): unknown[] {
  const targets = new Set(upper.map(targetOf));
  return [...lower.filter((volume) => !targets.has(targetOf(volume))), ...upper];
}

function targetOf(volume: unknown): unknown {
  return isMap(volume) ? volume.target : typeof volume === 'string' ? volume.split(':')[1] : volume;
}
