/**
 * A connection of the .NET client: `connectionData` first without a credential, the credential only once the service asks for a
 * bearer token, then every address by its location id (sdk `LocationHttpClient`, `VssHttpMessageHandler`, `ServerDataProvider`).
 */
import { randomUUID, sign } from 'node:crypto';
import { ServiceError, send } from './http.mjs';

/** The location ids of what an agent asks for; their paths are the service's to say. */
const locations = {
  pools: 'a8c47e17-4d56-4a56-92bb-de7ea7dc65be',
  agents: 'e298ef32-5878-4cab-993c-043836571f42',
  updates: '8cc1b02b-ae49-4516-b5ad-4f9b29967c30',
  sessions: '134e239e-2df3-4794-a6f6-24f1f19ec8dc',
  messages: 'c3a054f6-7a8a-49c0-944e-3a8e5d7adfd7',
  jobrequests: 'fc825784-c92a-4299-9221-998a02d1b54f',
  timelines: '83597576-cc2c-453c-bea6-2882ae6a1653',
  records: '8893bc5b-35b2-4be7-83cb-99e683551db4',
  feed: '858983e4-19bd-4c5e-864c-507b59b58b12',
  logs: '46f5667d-263a-4684-91b1-dff7fdcf64e2',
  events: '557624af-b29e-4c20-8ab0-0399d2204f3f',
};

/**
 * Connects to `url` (`https://host/collection`). `token(fresh)` gives the Authorization header, `challenge` is the scheme that the
 * service must ask for before it is sent. The result's `call(method, location, values, options)` throws `ServiceError`.
 */
export async function connect(url, token, challenge = 'Bearer') {
  const base = url.replace(/\/+$/, '');
  const data = `${base}/_apis/connectionData?connectOptions=1&lastChangeId=-1&lastChangeId64=-1`;
  await expectChallenge(data, challenge);
  const authorized = async (method, address, options = {}) => {
    const once = async (fresh) =>
      send(method, address, { ...options, headers: { ...options.headers, authorization: await token(fresh) } });
    try {
      return await once(false);
    } catch (error) {
      if (!(error instanceof ServiceError) || error.status !== 401) throw error;
      return await once(true);
    }
  };
  const { value } = await authorized('GET', data);
  if (typeof value?.authenticatedUser?.id !== 'string') throw new Error(`${data} names no authenticatedUser`);
  const known = await readLocations(value, base, authorized);
  return {
    deployment: value.deploymentType ?? null,
    call: (method, location, values = {}, { query, ...options } = {}) => {
      const search = query === undefined ? '' : `?${new URLSearchParams(query)}`;
      return authorized(method, `${base}/${path(known, location, values)}${search}`, options);
    },
  };
}

async function expectChallenge(url, challenge) {
  try {
    await send('GET', url);
  } catch (error) {
    if (!(error instanceof ServiceError) || (error.status !== 401 && error.status !== 302)) throw error;
    const asked = error.headers['www-authenticate'] ?? '';
    if (!asked.includes(challenge))
      throw new ServiceError(`The service asks for "${asked}", not ${challenge}`, 401, 'VssUnauthorizedException', error.headers);
  }
}

async function readLocations(data, base, authorized) {
  const defined = (data.locationServiceData?.serviceDefinitions ?? []).filter((entry) => entry.resourceVersion > 0);
  if (defined.length > 0)
    return new Map(
      defined.map((entry) => [
        entry.identifier,
        { template: entry.relativePath, area: entry.serviceType, resource: entry.displayName },
      ]),
    );
  const { value } = await authorized('OPTIONS', `${base}/_apis/`);
  return new Map(
    (value?.value ?? []).map((entry) => [
      entry.id,
      { template: entry.routeTemplate, area: entry.area, resource: entry.resourceName },
    ]),
  );
}

function path(known, location, values) {
  const id = locations[location];
  const entry = known.get(id);
  if (entry === undefined) throw new Error(`API resource location ${id} (${location}) is not registered on the service`);
  const all = { area: entry.area, resource: entry.resource, ...values };
  return entry.template
    .replace(/^\//, '')
    .replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(all[name] ?? ''))
    .replace(/\/+$/, '');
}

/** Signs in with the key and keeps the token until it is close to its end or was refused (sdk `VssOAuthJwtBearerAssertion`). */
export function agentToken({ clientId, authorizationUrl, oauthEndpointUrl }, privateKey) {
  let kept = null;
  return async (fresh) => {
    if (fresh || kept === null || kept.until < Date.now()) kept = await signIn();
    return kept.header;
  };
  async function signIn() {
    const now = Math.floor(Date.now() / 1000);
    const claims = { sub: clientId, iss: clientId, jti: randomUUID(), aud: authorizationUrl, nbf: now, exp: now + 300 };
    const text = [{ typ: 'JWT', alg: 'RS256' }, claims].map((part) => Buffer.from(JSON.stringify(part)).toString('base64url'));
    const assertion = [...text, sign('sha256', Buffer.from(text.join('.')), privateKey).toString('base64url')].join('.');
    const { value } = await send('POST', oauthEndpointUrl, {
      headers: { 'content-type': 'application/x-www-form-urlencoded' },
      body: new URLSearchParams({
        grant_type: 'client_credentials',
        client_assertion_type: 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer',
        client_assertion: assertion,
      }).toString(),
    }).catch((error) => {
      // A refusal here says nothing about the agent's entry, so it must not read as one.
      if (error instanceof ServiceError) error.typeKey = 'VssOAuthTokenRequestException';
      throw error;
    });
    if (typeof value?.access_token !== 'string') throw new Error(`${oauthEndpointUrl} gave no access_token`);
    const seconds = value.expires_in ?? 600;
    return { header: `Bearer ${value.access_token}`, until: Date.now() + seconds * 900 };
  }
}
