/**
 * Old values are bound to nothing: who sees one in another pipeline's definition could use it in their own. So the first pipeline
 * that uses one keeps it, and others are refused until its owner allows them. Pure; `src/store/secret-pins.ts` remembers.
 */
import type { SecretFormat } from './open.ts';
import { covers, listPipelines, type PipelinePattern, parsePipeline } from './pipelines.ts';

/** `pin`: nobody has used it yet; note the pipeline before the value goes out. */
export type PinVerdict = 'open' | 'pin' | { readonly refused: string };

/**
 * @param pins what `fingerprint` is pinned to; empty when it was never used
 * @param organisation, pipeline slugs as the CI service gives them; null when it gave none
 * `refused`: the end of a sentence that begins with the variable.
 */
export function decidePin(request: {
  readonly format: SecretFormat;
  readonly fingerprint: string;
  readonly pins: readonly PipelinePattern[];
  readonly organisation: string | null;
  readonly pipeline: string | null;
}): PinVerdict {
  const { format, fingerprint, pins, organisation, pipeline } = request;
  if (format === 'sealed') return 'open';
  if (organisation === null || pipeline === null)
    return { refused: 'is in the old format, which is for one pipeline only, and the job does not say which pipeline it is of' };
  const here = `${organisation}/${pipeline}`;
  // It would be a pattern, or stand in a command that somebody is told to type.
  if (here.includes('*') || parsePipeline(here) === null)
    return { refused: 'is in the old format, which is for one pipeline only, and no pipeline has such a name as the job says' };
  if (pins.length === 0) return 'pin';
  if (covers(pins, organisation, pipeline)) return 'open';
  return {
    refused:
      `is in the old format and belongs to ${listPipelines(pins)}, which used it first or was allowed to; ` +
      `if ${here} may have it too, type "onejob secret allow --pipeline ${here} ${fingerprint}" on the host`,
  };
}
