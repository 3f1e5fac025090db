/** What the config knows of a type of cloud. It opens none, so that commands load no library with it. */
import type { Keys } from '../schema/key.ts';
import type { SecretReference } from '../schema/secret-reference.ts';
import type { Keys as WrittenKeys } from '../schema/service-keys.ts';

export interface CloudType<
  C extends { readonly type: string; readonly name: string } = { readonly type: string; readonly name: string },
> {
  readonly type: C['type'];
  readonly title: string;
  /** Keys of an entry of `clouds`. */
  readonly keys: Keys;
  /** Keys of the maps in them. */
  readonly maps: Readonly<Record<string, Keys>>;
  /** Required keys. */
  readonly needs: readonly string[];
  /** Its cheapest type with a GPU, used if none is named; null: nobody knows. */
  readonly cheapType: string | null;
  /** Whether a machine can read what onejob leaves for it in the cloud; default: it can. */
  readonly takesMail?: boolean;
  /** A sentence that says why a type of machine cannot be used, such as for hardware that drivers no longer support; null: it can. */
  typeProblem(type: string): string | null;
  /** ms; longest time until its end that the cloud can hold for a machine. */
  readonly longestLifetime: number;
  /** null: keys are missing. */
  resolve(name: string, keys: WrittenKeys): C | null;
  /** What does not fit together in an entry, each with the path of its key. */
  problems?(cloud: C): readonly (readonly [path: readonly string[], message: string])[];
  /** Its secrets, each with its key. */
  secrets(cloud: C): readonly (readonly [key: string, secret: SecretReference])[];
}
