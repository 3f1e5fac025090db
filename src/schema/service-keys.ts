/** What types of services share about their keys. */
/** Parsed, but without defaults. */
export type Keys = Readonly<Record<string, unknown>>;

/** The program of a CI service's agent: put into images onejob builds (Azure Pipelines), or mounted into any image (Buildkite). */
export interface AgentPackageConfig {
  /** null: the newest of the service; for Buildkite whatever `from` is. */
  readonly version: string | null;
  /**
   * https address, or absolute path of a `.tar.gz`; null: the service's own. For Buildkite also the absolute path of the program,
   * or `image`: each image brings its own.
   */
  readonly from: string | null;
  /** Lower-case hex, of the file that `from` names; null: as the service says. */
  readonly sha256: string | null;
}

type WrittenPackage = { readonly [K in keyof AgentPackageConfig]?: string | null | undefined };

/** The version may also come from the name of the package. */
export function packageOf({ version = 'latest', from = null, sha256 = null }: WrittenPackage = {}): AgentPackageConfig {
  const told = from === null ? null : (/-(\d+\.\d+\.\d+)\.tar\.gz$/.exec(from)?.[1] ?? null);
  return { version: version === 'latest' ? told : version, from, sha256 };
}
