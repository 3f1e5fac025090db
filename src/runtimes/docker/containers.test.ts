/** Finding containers, with an Engine that the test controls, and whose requests are counted. */
import { expect, test } from 'vitest';
import { fakeEngine } from '../../../test/kit/fake-engine.ts';
import { Containers } from './containers.ts';

const never = new AbortController().signal;

const gone: string[] = [];

/** `answers`: by method and path, one after the other, the last for good; a number is a status without anything to say. */
async function over(answers: Readonly<Record<string, readonly (object | number)[]>>) {
  const asked: string[] = [];
  const fake = fakeEngine('containers', (path, { method }, reply) => {
    const call = `${method} ${path}`;
    const ready = answers[call] ?? [404];
    const answer = ready[Math.min(asked.filter((one) => one === call).length, ready.length - 1)] ?? 404;
    asked.push(call);
    if (typeof answer === 'number') return reply.writeHead(answer).end(answer === 204 ? undefined : '{"message":"no"}');
    return reply.end(JSON.stringify(answer));
  });
  const engine = await fake.connect();
  const containers = new Containers(engine, 'me', (id) => gone.push(id));
  return {
    containers,
    asked,
    [Symbol.asyncDispose]: fake.stop,
  };
}

const list = [{ Id: 'c1', State: 'running', Labels: { 'onejob.owner': 'me', 'onejob.agent': 'a' } }];
const inspected = (User: string) => ({
  Id: 'c1',
  Name: '/c',
  Image: 'sha256:i',
  State: { Status: 'running', Running: true, ExitCode: 0 },
  Config: { User },
});

test('a container is found by its labels, and remembered', async () => {
  await using here = await over({ 'GET /containers/json': [list] });
  expect(here.containers.recall('a')).toBeNull();
  expect(await here.containers.find('a', never)).toBe('c1');
  expect(await here.containers.find('a', never)).toBe('c1');
  expect(here.containers.recall('a')).toBe('c1');
  expect(here.asked).toEqual(['GET /containers/json']);
});

test('a removed container is lost, and looked up again the next time', async () => {
  await using here = await over({ 'GET /containers/json': [list, []] });
  await expect(here.containers.sure('a', never)).rejects.toMatchObject({ code: 'E_SANDBOX_LOST' });
  expect(here.containers.recall('a')).toBeNull();
  expect(await here.containers.find('a', never)).toBeNull();
});

test('files go to the user of a container that another manager has made, after one lookup', async () => {
  await using here = await over({ 'GET /containers/json': [list], 'GET /containers/c1/json': [inspected('4711:4712')] });
  const home = { id: 'c1', owner: { uid: 4711, gid: 4712 } };
  expect(await here.containers.home('a', never)).toEqual(home);
  expect(await here.containers.home('a', never)).toEqual(home);
  expect(here.asked).toEqual(['GET /containers/json', 'GET /containers/c1/json']);
});

test('users of an image are looked up once for all containers, and not forgotten', async () => {
  await using here = await over({});
  const user = { image: 'sha256:i', user: '4711' };
  here.containers.note('a', 'c1');
  expect(await here.containers.filesOf('a', { id: 'c1', ...user }, never)).toEqual({ uid: 4711, gid: 0 });
  here.containers.note('b', 'c2');
  expect(await here.containers.filesOf('b', { id: 'c2', ...user }, never)).toEqual({ uid: 4711, gid: 0 });
  here.containers.note('a', 'c1');
  expect(await here.containers.home('a', never)).toEqual({ id: 'c1', owner: { uid: 4711, gid: 0 } });
  expect(here.asked).toEqual(['GET /containers/c1/archive']);
});

test('a removal that somebody else began is awaited, and reported once', async () => {
  await using here = await over({
    'GET /containers/json': [list, []],
    'DELETE /containers/c1': [409, 409, 404],
    'GET /containers/c1/json': [inspected('')],
  });
  await here.containers.remove('a');
  expect(gone.splice(0)).toEqual(['c1']);
  expect(here.asked.filter((call) => call.startsWith('DELETE'))).toHaveLength(3);
  expect(here.containers.recall('a')).toBeNull();
  await here.containers.remove('a');
  expect(here.asked.filter((call) => call.startsWith('DELETE'))).toHaveLength(3);
});

test('a connection that breaks while the owner of files is looked up fails the lookup', async () => {
  const fake = fakeEngine('containers', (_path, _request, reply) => reply.write(Buffer.alloc(300), () => reply.destroy()));
  const engine = await fake.connect();
  const containers = new Containers(engine, 'me', () => {});
  await expect(containers.filesOf('a', { id: 'c1', image: 'i', user: 'bob' }, never)).rejects.toMatchObject({
    code: 'E_ENGINE_UNREACHABLE',
  });
  await fake.stop();
});
