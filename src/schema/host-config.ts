/** An entry of `hosts` in the config, resolved. */
import type { CloudImage, HostPlan } from '../ports/cloud.ts';

export interface HostConfig extends Omit<HostPlan, 'image'> {
  /** Key in `hosts`. */
  readonly host: string;
  /** Key in `clouds`. */
  readonly cloud: string;
  /** null: what the cloud's adapter chooses. */
  readonly image: CloudImage | null;
  /** How many machines there are without any job. */
  readonly min: number;
  /** ms without a job after which a machine ends. */
  readonly idle: number;
  /** ms in which a machine must have joined. */
  readonly boot: number;
  readonly opengl: 'none' | 'egl' | 'glx';
  /** Shell commands that each machine runs before it joins. */
  readonly setup: readonly string[];
  /** How many jobs one machine runs at the same time, as long as none has joined; then the machines say. */
  readonly agents: number;
}
