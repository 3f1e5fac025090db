/** Every migration, in order; the database's `user_version` is how many of them it has had. Never change one that was released. */
import { first } from './001-first.ts';
import { devices } from './002-devices.ts';
import { services } from './003-services.ts';
import { secretPins } from './004-secret-pins.ts';
import { holds } from './005-holds.ts';
import { acceptedBy } from './006-accepted-by.ts';

export const migrations: readonly (readonly string[])[] = [first, devices, services, secretPins, holds, acceptedBy];
