/**
 * What a CI service may try out from within: sandboxes like those of its agents, for `doctor`. They have no devices and no job, and
 * are gone when they have answered. Where they run the service does not know.
 */
import type { Recipe } from '../runtimes/runtime.ts';

export interface DiagnosticSandboxes {
  /**
   * A sandbox like that of the pool's first slot. `change` makes its recipe that of a job that brings its own.
   * null: none can be made like it, because there is no such pool, or its image is yet to be chosen or built.
   */
  like(pool: string, change?: (recipe: Recipe) => Recipe): DiagnosticSandbox | null;
}

export interface DiagnosticSandbox {
  readonly recipe: Recipe;
  /** Whether its programs are those of an image. */
  readonly hasImage: boolean;
  /** Same for sandboxes that are the same; one of them is enough to look at. */
  readonly kind: string;
  /**
   * What a script says on its standard output. Each time in a new sandbox. Fetches no image.
   * @throws OnejobError E_IMAGE_NOT_FOUND when the image is not there yet; of the runtime; E_GATE_ENDED when the script fails
   */
  ask(script: string, signal: AbortSignal): Promise<string>;
  /** The address under which it reaches what listens on this host at `port`. @throws OnejobError E_NO_DOOR */
  door(port: number, signal: AbortSignal): Promise<string>;
}

/** Where nothing can be tried out. */
export const noDiagnosticSandboxes: DiagnosticSandboxes = { like: () => null };
