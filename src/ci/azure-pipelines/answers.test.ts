import { describe, expect, it } from 'vitest';
import { refusalOf } from '../../../test/kit/azure.ts';
import { type AnswerVerdict, errorOf, judgeAnswer } from './answers.ts';

const type = { json: 'application/json; charset=utf-8; api-version=7.1', html: 'text/html; charset=utf-8' };

function verdict(
  status: number,
  kind: 'json' | 'html' | null,
  body: unknown = '',
  headers: Record<string, string> = {},
): AnswerVerdict {
  const text = typeof body === 'string' ? body : JSON.stringify(body);
  const all = new Headers({ ...(kind !== null && { 'Content-Type': type[kind] }), ...headers });
  return judgeAnswer({ status, headers: all, text, bytes: Buffer.from(text) }, (words) => words.replaceAll('hunter2', '***'));
}

const signIn = '<html><head><title>Azure DevOps Services | Sign In</title></head></html>';

describe('a success', () => {
  it('is 2xx with JSON, or without anything', () => {
    expect(verdict(200, 'json', { value: [] })).toEqual({ kind: 'value', body: { value: [] } });
    expect(verdict(201, 'json', { id: 1 })).toEqual({ kind: 'value', body: { id: 1 } });
    expect(verdict(204, null)).toEqual({ kind: 'nothing' });
  });

  it('is neither a page nor torn JSON', () => {
    expect(verdict(200, 'html', '<h1>Welcome to the guest network</h1>')).toMatchObject({
      kind: 'strange',
      why: '200 with a page instead of JSON',
    });
    expect(verdict(200, 'json', '{"value":[')).toMatchObject({ kind: 'strange', why: '200 with invalid JSON' });
    expect(verdict(200, null, '{"value":[]}')).toMatchObject({ kind: 'strange' });
  });
});

describe('a rejected credential, in each of its shapes', () => {
  it.each([
    ['203 with a page', verdict(203, 'html', signIn)],
    ['203 with any page', verdict(203, 'html', '<html></html>')],
    ['200 with the sign-in page', verdict(200, 'html', signIn)],
    ['302', verdict(302, 'html', '', { Location: 'https://spsprodweu1.vssps.visualstudio.com/_signin?realm=dev.azure.com' })],
    ['302 to Entra', verdict(302, null, '', { Location: 'https://login.microsoftonline.com/common/oauth2' })],
    ['302 within', verdict(302, null, '', { Location: '/_signin?x' })],
    [
      '401 with its words',
      verdict(401, 'json', refusalOf('UnauthorizedRequestException', "TF400813: The user '' is not authorized.")),
    ],
    ['401 without any', verdict(401, null)],
    ['401 with a page', verdict(401, 'html', signIn)],
    [
      '403 that names the reason',
      verdict(403, 'json', refusalOf('X', 'Access Denied: The Personal Access Token used has expired.')),
    ],
  ])('%s', (_, found) => expect(found.kind).toBe('rejected'));

  it('any other redirect is not a rejection, and is shown without its query', () => {
    const found = verdict(301, null, '', { Location: 'https://other.example/acme?token=hunter2' });
    expect(found).toMatchObject({ kind: 'strange', why: '301, a redirect to https://other.example/acme' });
  });
});

describe('absent', () => {
  it('is what a real 404 means', () => {
    expect(verdict(404, 'json', refusalOf('TaskAgentNotFoundException', 'No agent 3.'))).toEqual({ kind: 'absent' });
    expect(verdict(400, 'json', refusalOf('TaskAgentNotFoundException', 'No agent 3.'))).toEqual({ kind: 'absent' });
    expect(verdict(404, 'json', refusalOf('ProjectDoesNotExistException', 'VS800075'))).toEqual({ kind: 'absent' });
  });

  it('is not what a page, an unknown route or a missing pool means', () => {
    expect(verdict(404, 'html', '<h1>404</h1>')).toMatchObject({ kind: 'strange', hint: expect.stringContaining('organisation') });
    expect(verdict(404, null)).toMatchObject({ kind: 'strange' });
    const controller = "The controller for path '/_apis/x' was not found or does not implement IController.";
    expect(verdict(404, 'json', refusalOf('HttpException', controller))).toMatchObject({ kind: 'strange' });
    expect(verdict(404, 'json', refusalOf('TaskAgentPoolNotFoundException', 'No pool 3.'))).toMatchObject({ kind: 'refused' });
  });
});

describe('other refusals', () => {
  it.each([
    ['denied', verdict(403, 'json', refusalOf('AccessDeniedException', 'needs Manage permissions'))],
    ['denied', verdict(400, 'json', refusalOf('AccessDeniedException', 'needs Manage permissions'))],
    ['denied', verdict(403, 'html', 'blocked')],
    ['throttled', verdict(429, 'json', refusalOf('RequestBlockedException', 'TF400733'))],
    ['throttled', verdict(503, null, '', { 'Retry-After': '3' })],
    ['down', verdict(503, 'html', 'maintenance')],
    ['down', verdict(500, 'html', 'oops')],
    ['down', verdict(407, 'html', 'proxy')],
    ['refused', verdict(409, 'json', refusalOf('TaskAgentExistsException', 'taken'))],
    ['refused', verdict(400, 'json', refusalOf('X', 'no'))],
    ['strange', verdict(400, 'html', 'no')],
  ])('%s', (kind, found) => expect(found.kind).toBe(kind));

  it('a version that is a preview, or too new', () => {
    expect(verdict(400, 'json', refusalOf('VssInvalidPreviewVersionException', 'is under preview'))).toMatchObject({
      supports: null,
    });
    const said =
      'The requested REST API version of 7.1 is out of range for this server. The latest REST API version this server supports is 6.0.';
    expect(verdict(400, 'json', refusalOf('VssVersionOutOfRangeException', said))).toMatchObject({
      kind: 'version',
      supports: '6.0',
    });
  });

  it('words are shown in one line, cut and without secrets', () => {
    const found = verdict(400, 'json', refusalOf('X', `bad\u001b[2J\nhunter2 ${'x'.repeat(1000)}`));
    expect(found).toMatchObject({ kind: 'refused', why: expect.stringMatching(/^400: bad \[2J \*\*\* x+…$/) });
    expect('why' in found ? found.why.length : 0).toBeLessThan(320);
  });
});

describe('as errors', () => {
  const call = { method: 'POST', path: '/_apis/distributedtask/pools/3/agents', doing: 'register agent x in pool 3' } as const;
  const base = 'https://dev.azure.com/acme';

  it.each([
    ['E_CI_DENIED', false, verdict(403, 'json', refusalOf('AccessDeniedException', 'needs Manage permissions'))],
    ['E_CI_UNREACHABLE', true, verdict(502, 'html', '')],
    ['E_CI_NAME_TAKEN', true, verdict(409, 'json', refusalOf('TaskAgentExistsException', 'Agent x already exists.'))],
    ['E_CI_NAME_TAKEN', true, verdict(409, 'json', {})],
    ['E_CI_POOL', false, verdict(404, 'json', refusalOf('TaskAgentPoolNotFoundException', 'No pool.'))],
    ['E_CI_POOL', false, verdict(404, 'json', {})],
    ['E_CI_ANSWER', true, verdict(404, 'html', '')],
    ['E_CI_ANSWER', true, verdict(400, 'json', {})],
  ])('%s', (code, retry, found) => expect(errorOf(found, call, base)).toMatchObject({ code, retry, hint: expect.any(String) }));

  it('a denied call names the scope and the role', () => {
    const error = errorOf(verdict(403, 'json', refusalOf('AccessDeniedException', 'needs Manage permissions.')), call, base);
    expect(error.message).toBe(
      'Cannot register agent x in pool 3: https://dev.azure.com/acme does not allow it (403: needs Manage permissions.).',
    );
    expect(error.hint).toMatch(/Agent Pools \(Read & manage\).*role Administrator on the pool/);
  });

  it('a conflict is about a name only where something would be made', () => {
    expect(errorOf(verdict(409, 'json', {}), { ...call, method: 'PATCH' }, base).code).toBe('E_CI_ANSWER');
  });
});
