/** What the config holds of a cloud of type `command`. */
import type { SecretReference } from '../../schema/secret-reference.ts';

export interface CommandConfig {
  readonly name: string;
  readonly type: 'command';
  /** Its path. */
  readonly program: string;
  /** What each request has as `options`. */
  readonly options: Readonly<Record<string, string>>;
  /** What each request has as `secrets`. */
  readonly secrets: Readonly<Record<string, SecretReference>>;
  /** ms for one answer. */
  readonly timeout: number;
  readonly deathDate: 'cloud' | 'manager-only';
  readonly shutdownRemoves: boolean;
}
