/** What it means when the Engine refuses to create or start a container: mostly something in the recipe. */
import { OnejobError } from '../../errors.ts';
import type { SandboxSpec } from '../runtime.ts';
import type { Endpoint } from './endpoint.ts';
import { messageOf, statusOf, translate } from './failures.ts';

export function refusal(error: unknown, spec: SandboxSpec, endpoint: Endpoint): OnejobError {
  if (error instanceof OnejobError) return error;
  const doing = `start agent ${spec.name}`;
  if (statusOf(error) === null) return translate(error, doing, endpoint);
  const said = messageOf(error);
  const { recipe, pool } = spec;
  const make = (
    code: 'E_MOUNT_MISSING' | 'E_NETWORK_NOT_FOUND' | 'E_IMAGE_NOT_FOUND' | 'E_USER_UNKNOWN' | 'E_NO_SHELL' | 'E_NAME_TAKEN',
    what: string,
    hint: string,
    retry = false,
  ) => new OnejobError(code, `Cannot ${doing}: ${what}.`, { hint, retry, cause: error });

  const mount = /bind source path does not exist: (\S+)/.exec(said) ?? /statfs (\S+): no such file or directory/.exec(said);
  if (mount !== null) {
    return make(
      'E_MOUNT_MISSING',
      `the path "${mount[1]}" of its volumes is not on this host`,
      `Make it, or take it out of volumes in pools.${pool}.`,
    );
  }
  if (/no such image/i.test(said)) {
    return make(
      'E_IMAGE_NOT_FOUND',
      `image "${recipe.image}" is no longer on the Engine`,
      `Type "docker pull ${recipe.image}".`,
      true,
    );
  }
  if (/network .*not found|could not find network/i.test(said)) {
    const own = recipe.network === 'default';
    const hint = own ? 'It is made anew.' : `Type "docker network create ${recipe.network}", or change network in pools.${pool}.`;
    return make('E_NETWORK_NOT_FOUND', `the Engine has no network "${recipe.network}"`, hint, own);
  }
  if (/unable to find (user|group)|no matching entries in (passwd|group) file/i.test(said)) {
    return make(
      'E_USER_UNKNOWN',
      `the image "${recipe.image}" has no user "${recipe.user ?? 'of its own'}"`,
      `Write a uid, or a user of the image, as user in pools.${pool}.`,
    );
  }
  if (/executable file .*not found|exec: "sh"|"sh": /i.test(said)) {
    return make(
      'E_NO_SHELL',
      `the image "${recipe.image}" has no "sh"; the gate needs a POSIX shell`,
      `Take another image in pools.${pool}.`,
    );
  }
  if (statusOf(error) === 409 && /name .*(in use|already)/i.test(said)) {
    return make('E_NAME_TAKEN', "a container of its name is there, and is not onejob's", 'Look at it with "docker ps -a".', true);
  }
  return translate(error, doing, endpoint);
}
