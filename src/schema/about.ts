/** What the docs page says about a key, apart from its default. */
export interface About {
  /** What it does; sentences. */
  readonly description: string;
  /** A value as people write it in YAML. */
  readonly example: string;
  /** Its default in pools of services whose agents are programs in an image. */
  readonly defaultInImages?: unknown;
  /** The default for the docs page, if it is not a plain value. */
  readonly shown?: string;
}

export interface Described extends About {
  /** Kind of its values, as the docs page says it. */
  readonly kind: string;
  readonly default?: unknown;
}

/** `kind`: of the values, if their type does not say it. */
export type Told = readonly [about: About] | readonly [kind: string, about: About];
