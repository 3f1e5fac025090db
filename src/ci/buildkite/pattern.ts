/**
 * Patterns of trust rules, against slugs of pipelines and names of branches. `*` and `?` stop at a slash, `**` does not;
 * `{a,b}` and `[0-9]` are known too. Case counts. Config has refused patterns that begin with `!`.
 */
import { glob } from '../../glob.ts';

/** Whether one of the patterns fits the whole text. */
export function matches(patterns: readonly string[], text: string): boolean {
  return patterns.some((pattern) => glob(pattern)(text));
}

/** A pattern with a slash is about `organisation/pipeline`, one without about the pipeline alone. */
export function matchesPipeline(patterns: readonly string[], organisation: string, pipeline: string): boolean {
  const [withOrganisation, alone] = [patterns.filter(hasSlash), patterns.filter((pattern) => !hasSlash(pattern))];
  return matches(alone, pipeline) || matches(withOrganisation, `${organisation}/${pipeline}`);
}

function hasSlash(pattern: string): boolean {
  return pattern.includes('/');
}
