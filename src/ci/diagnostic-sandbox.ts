/**
 * Sandboxes like those of a service's agents, for `doctor`: without devices and job, removed after their answer. The service does
 * not know where they run.
 */
import type { Recipe } from '../runtimes/runtime.ts';

export interface DiagnosticSandboxes {
  /** Like that of the pool's first slot. `change`: the recipe of a job's own. null: no such pool, or no image yet. */
  like(pool: string, change?: (recipe: Recipe) => Recipe): DiagnosticSandbox | null;
}

export interface DiagnosticSandbox {
  readonly recipe: Recipe;
  /** Whether it has an image. */
  readonly hasImage: boolean;
  /** Equal for equal sandboxes. */
  readonly kind: string;
  /** Each time in a new sandbox; pulls no image. @throws OnejobError E_IMAGE_NOT_FOUND, E_GATE_ENDED, of the runtime */
  ask(script: string, signal: AbortSignal): Promise<string>;
  /** The address at which it reaches `port` of this host. @throws OnejobError E_NO_DOOR */
  hostAddress(port: number, signal: AbortSignal): Promise<string>;
}

export const noDiagnosticSandboxes: DiagnosticSandboxes = { like: () => null };
