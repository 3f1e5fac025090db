/** The config as the rest of onejob sees it: complete, checked, read-only. How it is written is `schema.ts`. */
import type { Recipe } from '../runtimes/runtime.ts';
import type { SecretReference } from '../secrets/reference.ts';

export type RuntimeName = 'docker' | 'process';

/** What happens to running agents when the manager is told to stop (S10). */
export type OnStop = 'end' | 'drain' | 'leave';

/** A CI service other than the own queue, which needs no entry. */
export type ServiceConfig = { readonly name: string; readonly type: 'own-queue' } | AzureServiceConfig | BuildkiteServiceConfig;

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

export interface BuildkiteServiceConfig {
  readonly name: string;
  readonly type: 'buildkite';
  /** Of the Agent API, without a slash at its end. */
  readonly endpoint: string;
  /** Of a cluster, or of an organisation without. With it anybody can take any of its jobs, so it enters no sandbox but where `registration` says so. */
  readonly token: SecretReference;
  /**
   * Who makes an agent known to the service: `manager`, onejob itself, with a token for the one job that it has reserved. `in-agent`:
   * the agent, with the token of the service, which is all there is where nothing can be reserved.
   */
  readonly registration: 'manager' | 'in-agent';
  /** Only for counts; null: `token` is used for them too. */
  readonly metricsToken: SecretReference | null;
  /** ms between two looks at the counts of the queues. */
  readonly pollEvery: number;
  /** ms that the agent in a released sandbox may take to acquire its job. */
  readonly bootTimeout: number;
  /** ms that a reserved job may wait for a slot. */
  readonly holdTimeout: number;
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

/** The program of a CI service's agent: put into images onejob builds (Azure Pipelines), or mounted into any image (Buildkite). */
export interface AgentPackageConfig {
  /** null: the newest that the service hands out; of Buildkite's, which has a pinned one, whatever `from` is. */
  readonly version: string | null;
  /**
   * https address, or absolute path of a `.tar.gz`; null: what the service hands out. Of Buildkite's also the absolute path of the
   * program itself, or `image`: each image brings its own.
   */
  readonly from: string | null;
  /** Lower-case hex, of the file that `from` names; null: what the service says. */
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
  /** null: the best one that is there. A pool that names an image is never null: only docker has images. */
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
  /** Bytes that the files of a job may take on disk; null for no limit. */
  readonly disk: number | null;
  /** What jobs may do by where they come from, where the CI service tells it. */
  readonly trust: TrustConfig;
  /** `none`: credentials of a CI service may enter a sandbox that cannot hold them apart (S8). */
  readonly isolation: 'full' | 'none';
  /** Folder of the host with hooks of the owner, for agents that know hooks (Buildkite); null: none. */
  readonly hooks: string | null;
  /** Folder of the host with plugins of the owner, likewise. */
  readonly plugins: string | null;
  /** Bytes that each named cache of a slot may have; what was not used for longest is removed beyond. */
  readonly cacheLimit: number;
  /** Set when the image is to be chosen or built; then `recipe.image` is null until it was. */
  readonly imageRecipe: ImageRecipe | null;
  /** `{name}` in env, mounts is already a template here: expand per slot with `expandRecipe`. */
  readonly recipe: Recipe;
}

/** A job is trusted unless it is from a fork, another build triggered it, or a pattern does not name what it is from. */
export interface TrustConfig {
  readonly forks: 'refuse' | 'run-without-secrets';
  /** Patterns, of slugs or of `organisation/slug`; null: any. */
  readonly pipelines: readonly string[] | null;
  /** Patterns; null: any. Those of forks have no say: who forks chooses the names. */
  readonly branches: readonly string[] | null;
  /** Patterns; null: none. A build of a tag is never one of a branch. */
  readonly tags: readonly string[] | null;
  /** What may have made the build, in the service's words; null: anything. */
  readonly sources: readonly string[] | null;
  /** Patterns of what addresses of repositories mean, as `host/path` or `user@host/path`; null: any. */
  readonly repositories: readonly string[] | null;
  /** Builds that another build triggered; `as-others`: a job of a fork may have done so. */
  readonly triggered: 'as-others' | 'trust';
  /** What becomes of jobs that the patterns do not name, and of triggered ones. */
  readonly others: 'refuse' | 'run-without-secrets';
  /** Of untrusted jobs: `private`, named caches of their own for each repository. */
  readonly caches: 'none' | 'private';
  /** Of untrusted jobs; null: as the pool's. */
  readonly image: string | null;
  /** Of untrusted jobs. */
  readonly network: string;
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
