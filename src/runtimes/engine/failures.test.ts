import { expect, test } from 'vitest';
import { Refusal, translate } from './failures.ts';

const endpoint = { kind: 'unix', path: '/run/podman/podman.sock', from: 'DOCKER_HOST' } as const;

test('the container that a power cut has left half written in the store of Podman: how to remove it', () => {
  const id = '9fa44c14677b39d0871eec79cf67fc422b7f304df1d649cd789fdc02de466dfc';
  const cause = `getting graph driver info "${id}": readlink /var/lib/containers/storage/overlay: invalid argument`;
  const body = JSON.stringify({ cause: 'invalid argument', message: cause, response: 500 });
  expect(translate(new Refusal(500, body), 'list containers', endpoint)).toMatchObject({
    code: 'E_ENGINE_FAILED',
    message: `Cannot list containers: the Engine answered 500: ${cause}.`,
    hint: 'A power cut has left this container half written. Type "podman rm --force 9fa44c14677b" to remove it.',
    retry: true,
  });
});
