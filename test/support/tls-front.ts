/** TLS before a program that speaks none, with a certificate of an authority that is made for the test. */
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, writeFileSync } from 'node:fs';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { join } from 'node:path';
import { createServer } from 'node:tls';

/** As PEM. */
export interface Identity {
  readonly key: string;
  readonly cert: string;
}

export interface Authority {
  /** Its certificate, as `NODE_EXTRA_CA_CERTS` wants it. */
  readonly file: string;
  readonly certificate: string;
  /** A certificate for these hosts, names or addresses. */
  issue(...hosts: readonly string[]): Identity;
}

/** Needs `openssl`. @param dir an empty folder */
export function createAuthority(dir: string): Authority {
  const openssl = (...args: readonly string[]): void => void execFileSync('openssl', args, { cwd: dir, stdio: 'ignore' });
  const ec = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes'];
  openssl('req', '-x509', ...ec, '-days', '2', '-subj', '/CN=Test CA', '-keyout', 'ca-key.pem', '-out', 'ca.pem');
  const file = join(dir, 'ca.pem');
  return {
    file,
    certificate: readFileSync(file, 'utf8'),
    issue(...hosts) {
      const names = hosts.map((host) => `${/^[\d.]+$/.test(host) ? 'IP' : 'DNS'}:${host}`).join(',');
      writeFileSync(join(dir, 'extensions'), `subjectAltName=${names}\n`);
      openssl('req', ...ec, '-subj', `/CN=${hosts[0]}`, '-keyout', 'key.pem', '-out', 'request.pem');
      const ca = ['-CA', 'ca.pem', '-CAkey', 'ca-key.pem', '-CAcreateserial'];
      openssl('x509', '-req', '-days', '2', '-in', 'request.pem', ...ca, '-extfile', 'extensions', '-out', 'cert.pem');
      return { key: readFileSync(join(dir, 'key.pem'), 'utf8'), cert: readFileSync(join(dir, 'cert.pem'), 'utf8') };
    },
  };
}

export interface TlsFront extends AsyncDisposable {
  readonly port: number;
}

/** Listens on 127.0.0.1 and carries what it is told to what listens on `port` there. */
export async function tlsFront(identity: Identity, port: number): Promise<TlsFront> {
  const open = new Set<Socket>();
  const server = createServer({ ...identity, ALPNProtocols: ['http/1.1'] }, (socket) => {
    const inner = connect({ port, host: '127.0.0.1' });
    for (const one of [socket, inner]) {
      open.add(one.on('error', () => {}));
      one.once('close', () => open.delete(one));
    }
    socket.pipe(inner);
    inner.pipe(socket);
    socket.once('close', () => inner.destroy());
    inner.once('close', () => socket.destroy());
  });
  server.on('connection', (socket) => {
    open.add(socket);
    socket.once('close', () => open.delete(socket));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    port: (server.address() as AddressInfo).port,
    async [Symbol.asyncDispose]() {
      server.close();
      for (const socket of open) socket.destroy();
      await once(server, 'close');
    },
  };
}
