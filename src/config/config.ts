/** The config as the rest of onejob sees it: complete, checked, read-only. How it is written is `schema.ts`. */
import type { Recipe } from '../runtimes/runtime.ts';

export type RuntimeName = 'docker' | 'process';

/** What happens to running agents when the manager is told to stop (S10). */
export type OnStop = 'end' | 'drain' | 'leave';

export interface PoolConfig {
  readonly name: string;
  /** Key in `services`, or `own` for the own queue. */
  readonly service: string;
  /** null: the best one that is there. */
  readonly runtime: RuntimeName | null;
  /** What jobs ask for at the CI service; for the own queue the pool's name. */
  readonly queue: string;
  readonly priority: number;
  /** Agent name template; knows {host} {pool} {n} and {K..}. */
  readonly agentName: string;
  /** Number of slots; `per-device` once there is an inventory. */
  readonly agents: number | 'per-device';
  /** Number of devices each agent needs; 0 for a CPU pool. Conditions come with the inventory. */
  readonly devices: DeviceRequest;
  readonly tags: readonly string[];
  readonly standby: boolean;
  /** ms */
  readonly standbyMaxAge: number;
  /** ms a job may take to end after TERM. */
  readonly stopGrace: number;
  /** ms a job may run; null for no limit. */
  readonly timeout: number | null;
  /** `{name}` in env, mounts is already a template here: expand per slot with `expandRecipe`. */
  readonly recipe: Recipe;
}

export interface DeviceRequest {
  readonly count: number | 'all';
  readonly mig: boolean | string | null;
  readonly model: string | null;
  readonly uuids: readonly string[];
  readonly vendor: string | null;
  /** `>=40GiB` and the like, as written. */
  readonly memory: string | null;
  readonly compute: string | null;
  readonly share: number;
  readonly display: 'refuse' | 'allow';
}

export interface Config {
  /** Where it was read from; null when there is no file. */
  readonly path: string | null;
  readonly stateDir: string;
  readonly socket: string;
  /** bytes of log kept per agent */
  readonly logLimit: number;
  /** share of disk, 0 to 1, below which nothing is released */
  readonly diskMinFree: number;
  /** ms after which finished jobs, their logs and artifacts are forgotten */
  readonly keepJobs: number;
  readonly onStop: OnStop;
  readonly pools: readonly PoolConfig[];
}
