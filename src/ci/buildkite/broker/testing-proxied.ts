/** For tests: a service over TLS, of which nobody but a proxy knows where it is. */
import { createServer, type RequestListener } from 'node:http';
import * as tls from 'node:tls';
import { type Behind, behindProxy } from '../../../../test/support/proxy.ts';
import { scratch } from '../../../../test/support/scratch.ts';
import { type Authority, createAuthority } from '../../../../test/support/tls-front.ts';
import { type Proxies, readProxies } from '../../../config/proxies.ts';

export interface Authorities extends Disposable {
  /** Known to this process. */
  readonly own: Authority;
  readonly stranger: Authority;
}

/** Needs `openssl`. */
export function authorities(): Authorities {
  const folders = [scratch(), scratch()] as const;
  const [own, stranger] = [createAuthority(folders[0].path), createAuthority(folders[1].path)];
  const trusted = tls.getCACertificates('default');
  tls.setDefaultCACertificates([...trusted, own.certificate]);
  return {
    ...{ own, stranger },
    [Symbol.dispose]() {
      tls.setDefaultCACertificates(trusted);
      for (const folder of folders) folder[Symbol.dispose]();
    },
  };
}

export interface Proxied extends Behind {
  readonly proxies: Proxies;
}

/** Names are `agent.test`, and `store.test` for artifacts; both are that one service. */
export async function proxiedService(authority: Authority, handler: RequestListener): Promise<Proxied> {
  const server = createServer(handler);
  const behind = await behindProxy(server, authority.issue('agent.test', 'store.test', '192.0.2.1'), {
    secure: ['agent.test:443', 'store.test:443', 'other.test:443', '192.0.2.1:443', '192.0.2.2:443'],
    plain: ['agent.test:80', 'store.test:80'],
  });
  const { url } = behind.proxy;
  return { ...behind, proxies: readProxies({ NODE_USE_ENV_PROXY: '1', HTTPS_PROXY: url, HTTP_PROXY: url }) };
}
