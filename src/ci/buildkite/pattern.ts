/**
 * Patterns of trust rules, against slugs of pipelines and names of branches. `*` and `?` stop at a slash, `**` does not;
 * `{a,b}` and `[0-9]` are known too. Case counts. Config has refused patterns that begin with `!`.
 */
import picomatch from 'picomatch';

const options: picomatch.PicomatchOptions = { dot: true, nonegate: true, strictSlashes: true, windows: false };

/** Whether one of the patterns fits the whole text. */
export function matches(patterns: readonly string[], text: string): boolean {
  return text !== '' && patterns.some((pattern) => pattern !== '' && picomatch(pattern, options)(text));
}

/** A pattern with a slash is about `organisation/pipeline`, one without about the pipeline alone. */
export function matchesPipeline(patterns: readonly string[], organisation: string, pipeline: string): boolean {
  const [withOrganisation, alone] = [patterns.filter(hasSlash), patterns.filter((pattern) => !hasSlash(pattern))];
  return matches(alone, pipeline) || matches(withOrganisation, `${organisation}/${pipeline}`);
}

function hasSlash(pattern: string): boolean {
  return pattern.includes('/');
}
