import { expect, test } from 'vitest';
import { calls } from '../contract/calls.ts';
import { openApi } from './openapi.ts';

const document = JSON.parse(JSON.stringify(openApi(calls)));

test('every route is in the document, with its role, parameters and bodies', () => {
  const methods = Object.values<object>(document.paths).flatMap((path) => Object.keys(path));
  expect(methods).toHaveLength(Object.keys(calls).length);
  expect(document.paths['/v1/pools/{pool}/pause'].post).toMatchObject({
    'x-role': 'operator',
    parameters: [{ name: 'pool', in: 'path', required: true }],
    requestBody: { content: { 'application/json': { schema: { properties: { reason: { default: 'hand' } } } } } },
    responses: { 204: {} },
  });
  expect(document.paths['/v1/jobs'].post.requestBody.required).toBe(true);
  expect(document.paths['/v1/pause'].post.requestBody.required).toBe(false);
  expect(Object.keys(document.paths['/v1/jobs/{id}/artifacts'].get.responses)).toEqual(['200', '204', 'default']);
  expect(document.paths['/v1/jobs'].get).toMatchObject({
    parameters: expect.arrayContaining([expect.objectContaining({ name: 'limit', in: 'query', required: false })]),
    responses: { 200: { content: { 'application/json': { schema: { items: { $ref: '#/components/schemas/jobView' } } } } } },
  });
});

test('every reference leads somewhere', () => {
  const references = [...JSON.stringify(document).matchAll(/"\$ref":"#\/components\/schemas\/([^"]+)"/g)].map(([, name]) => name);
  expect(references).toContain('slotView');
  expect(references.filter((name) => !Object.hasOwn(document.components.schemas, name ?? ''))).toEqual([]);
});

test('what changes something is for operators', () => {
  const changing = Object.entries(calls).filter(([name]) => !name.startsWith('GET '));
  expect(changing.filter(([, { role }]) => role === 'read')).toEqual([]);
});
