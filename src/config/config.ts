/** The config as the rest of onejob sees it: complete, checked, read-only. How it is written is `schema.ts`. */
import type { Recipe } from '../runtimes/runtime.ts';
import type { SecretReference } from '../secrets/reference.ts';

export type RuntimeName = 'docker' | 'process';

/** What happens to running agents when the manager is told to stop (S10). */
export type OnStop = 'end' | 'drain' | 'leave';

/** A CI service other than the own queue, which needs no entry. */
export type ServiceConfig =
  | { readonly name: string; readonly type: 'own-queue' }
  | AzureServiceConfig
  | { readonly name: string; readonly type: 'buildkite'; readonly token: SecretReference };

export interface AzureServiceConfig {
  readonly name: string;
  readonly type: 'azure-pipelines';
  /** Of the organisation or collection, without a slash at its end. */
  readonly url: string;
  readonly credential: AzureCredential;
  /**
   * Who makes an agent known to the service: `manager`, onejob itself, so that no credential enters a sandbox. `in-agent`:
   * the agent's own `config.sh`. `image`: the image's own start script. `auto`: `manager` for an image with an agent, else `image`.
   */
  readonly registration: 'manager' | 'in-agent' | 'image' | 'auto';
  /** ms between two looks at the service. */
  readonly pollEvery: number;
  /** ms until a released agent must be online. */
  readonly bootTimeout: number;
  readonly agentPackage: AgentPackageConfig;
}

export type AzureCredential =
  | { readonly kind: 'pat'; readonly token: SecretReference }
  /** An Entra application. `authority`: where its tokens are made, without a slash at its end. */
  | {
      readonly kind: 'principal';
      readonly tenant: string;
      readonly client: string;
      readonly secret: SecretReference;
      readonly authority: string;
    };

/** The agent that is put into images onejob builds. */
export interface AgentPackageConfig {
  /** null: the newest that the service hands out. */
  readonly version: string | null;
  /** https address, or absolute path of a `.tar.gz`; null: what the service hands out. */
  readonly from: string | null;
  /** Lower-case hex; null: what the service says. */
  readonly sha256: string | null;
}

/** An image that onejob builds; `auto` chooses the base from architecture, driver and GPU generation. */
export interface ImageRecipe {
  /** Image reference, or `auto`; null when only `dockerfile` is given. */
  readonly base: string | null;
  readonly packages: readonly string[];
  /** Path of a Dockerfile on this host. */
  readonly dockerfile: string | null;
  readonly flavour: 'base' | 'runtime' | 'devel';
  /** As in tags of images, such as `ubuntu22.04`, for `auto`; null for the best one there is. */
  readonly distribution: string | null;
}

export interface PoolConfig {
  readonly name: string;
  /** Key in `services`, or `own` for the own queue. */
  readonly service: string;
  /** null: the best one that is there. */
  readonly runtime: RuntimeName | null;
  /** What jobs ask for at the CI service; for the own queue the pool's name. */
  readonly queue: string;
  readonly priority: number;
  /** Agent name template; knows {host} {pool} {n} and {K..}. Expand with `expandName`. */
  readonly agentName: string;
  /** Number of slots; `per-device`: as many as there are devices that fit. */
  readonly agents: number | 'per-device';
  /** Devices each agent needs, with conditions on them; none for a CPU pool. */
  readonly devices: DeviceRequest;
  readonly tags: readonly string[];
  readonly standby: boolean;
  /** ms */
  readonly standbyMaxAge: number;
  /** ms a job may take to end after TERM. */
  readonly stopGrace: number;
  /** ms a job may run; null for no limit. */
  readonly timeout: number | null;
  /** What jobs from forks may do, as the CI service knows them; null when not written. */
  readonly trust: { readonly forks: 'refuse' | 'run-without-secrets' | 'run' } | null;
  /** `none`: credentials of a CI service may enter a sandbox that cannot hold them apart (S8). */
  readonly isolation: 'full' | 'none';
  /** Set when the image is to be chosen or built; then `recipe.image` is null until it was. */
  readonly imageRecipe: ImageRecipe | null;
  /** `{name}` in env, mounts is already a template here: expand per slot with `expandRecipe`. */
  readonly recipe: Recipe;
}

export interface DeviceRequest {
  readonly count: number | 'all';
  /** true: any MIG instance; a profile such as `1g.10gb`; null or false: whole cards. */
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

/** What the owner wants to be run for a device that was put in quarantine. */
export interface RepairCommand {
  /** A program, by its path or by its name on the `PATH`, and its arguments: no shell. */
  readonly command: readonly [string, ...string[]];
  /** ms after which it is killed. */
  readonly timeout: number;
}

export interface Config {
  /** Where it was read from; null when there is no file. */
  readonly path: string | null;
  /** What `{host}` stands for in agent names: the host's short name, 24 characters at most. */
  readonly host: string;
  readonly stateDir: string;
  readonly socket: string;
  /** bytes of log kept per agent */
  readonly logLimit: number;
  /** share of disk, 0 to 1, below which nothing is released */
  readonly diskMinFree: number;
  /** ms after which finished jobs, their logs and artifacts are forgotten */
  readonly keepJobs: number;
  readonly onStop: OnStop;
  /** null: nothing is run. */
  readonly onQuarantine: RepairCommand | null;
  /** Private key that opens secrets in job definitions; null when not written. */
  readonly secretsKey: SecretReference | null;
  readonly services: readonly ServiceConfig[];
  readonly pools: readonly PoolConfig[];
}
