import { OnejobError } from '../errors.ts';
import { exitCodes } from './exit.ts';

/** Exit code of `run` when the job was never accepted. */
export function notRun(error: unknown): number {
  const mistake = error instanceof OnejobError && (error.code === 'E_USAGE' || error.code === 'E_API_REQUEST');
  return mistake ? exitCodes.usage : exitCodes.notRun;
}
