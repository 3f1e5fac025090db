import { expect, it } from 'vitest';
import { createUploadAddresses, withOwnUploads } from './artifacts.ts';

const addresses = createUploadAddresses(Buffer.alloc(32, 1));
const to = { addresses, agent: 'a', host: '172.17.0.1:4711' };
const sealedIn = (url: string): string => url.split('/upload/')[1] ?? '';

it('a form is led to the gateway, with its fields and its true path inside', () => {
  const upload_instructions = {
    data: { key: 'x/${artifact:path}' },
    action: { url: 'https://bucket.s3.example/ignored?q=1', path: '/a b/${x}%41', method: 'POST', file_input: 'file' },
  };
  const led = withOwnUploads({ id: 'i', artifact_ids: ['1'], upload_instructions }, to) as {
    upload_instructions: typeof upload_instructions;
  };
  const { action, data } = led.upload_instructions;
  expect(data).toEqual(upload_instructions.data);
  expect(action).toMatchObject({ method: 'POST', file_input: 'file' });
  expect(action.url).toBe(`http://172.17.0.1:4711${action.path}`);
  expect(action.url).not.toContain('bucket');
  expect(addresses.open(sealedIn(action.path))).toEqual({
    agent: 'a',
    origin: 'https://bucket.s3.example',
    path: '/a%20b/$%7Bx%7D%2541?q=1',
  });
});

it('the parts of one artifact have their own signed addresses', () => {
  const url = 'https://bucket.s3.example/k%2Fey?partNumber=1&X-Amz-Signature=ab%2Bc';
  const answer = { per_artifact_instructions: { one: { actions: [{ url, method: 'PUT', part_number: 1 }] } } };
  const led = withOwnUploads(answer, to) as typeof answer;
  const [part] = led.per_artifact_instructions.one.actions;
  expect(part).toMatchObject({ method: 'PUT', part_number: 1 });
  expect(part).not.toHaveProperty('path');
  expect(addresses.open(sealedIn(part?.url ?? ''))).toMatchObject({ path: '/k%2Fey?partNumber=1&X-Amz-Signature=ab%2Bc' });
});

it.each([
  [null],
  ['text'],
  [{}],
  [{ upload_instructions: null }],
  [{ upload_instructions: { action: { url: 'file:///etc/passwd' } } }],
])('what is no upload stays as it is: %j', (answer) => {
  expect(withOwnUploads(answer, to)).toEqual(answer);
});

it('an address outlives the broker that made it', () => {
  const upload = { agent: 'a', origin: 'https://x', path: '/' };
  expect(createUploadAddresses(Buffer.alloc(32, 1)).open(addresses.seal(upload))).toEqual(upload);
});

it('opens nothing that was changed, cut, or sealed with another key', () => {
  const sealed = addresses.seal({ agent: 'a', origin: 'https://x', path: '/' });
  const other = createUploadAddresses(Buffer.alloc(32, 2)).seal({ agent: 'a', origin: 'https://x', path: '/' });
  const changed = `${sealed.slice(0, 30)}${sealed[30] === 'A' ? 'B' : 'A'}${sealed.slice(31)}`;
  for (const text of ['', 'x', sealed.slice(0, -1), changed, other]) expect(addresses.open(text)).toBeNull();
});
