/** A type of CI service, with the rules of its filter. */
import type { ServiceConfig } from '../config/config.ts';
import type { ServiceType as ConfigType } from '../config/service-type.ts';
import type { Rules } from './filter/rules.ts';

export interface ServiceType<C extends ServiceConfig = ServiceConfig> extends ConfigType<C> {
  /** What the filter lets its untrusted jobs ask. */
  filterRules?(): Promise<Rules>;
}
