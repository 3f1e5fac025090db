/** Which pipelines a value is for: `ORGANISATION/PIPELINE` by their slugs. `*` stands for all, and is never assumed. */

import { listed } from './problem.ts';

/** `acme/solver`, `acme/*`, or `*` twice for every pipeline. */
export type PipelinePattern = string;

const slug = /^[a-z0-9](?:[a-z0-9._-]{0,126}[a-z0-9_])?$/;

/** null when it is invalid. `*` for the organisation requires `*` for the pipeline. */
export function parsePipeline(text: string): PipelinePattern | null {
  const [organisation = '', pipeline = '', ...more] = text.split('/');
  const isAll = pipeline === '*' && (organisation === '*' || slug.test(organisation));
  return more.length === 0 && (isAll || (slug.test(organisation) && slug.test(pipeline))) ? text : null;
}

/** Whether one of `patterns` covers this pipeline. An unknown organisation or pipeline is never covered. */
export function covers(patterns: readonly PipelinePattern[], organisation: string | null, pipeline: string | null): boolean {
  if (organisation === null || pipeline === null) return false;
  return patterns.some((each) => {
    const [wantedOrganisation, wantedPipeline] = each.split('/');
    const fits = (wanted: string | undefined, is: string) => wanted === '*' || wanted === is;
    return fits(wantedOrganisation, organisation) && fits(wantedPipeline, pipeline);
  });
}

/** For people: `acme/solver and acme/docs`. */
export function listPipelines(patterns: readonly PipelinePattern[]): string {
  return listed(patterns.map((each) => (each === '*/*' ? 'every pipeline' : each))) || 'no pipeline';
}
