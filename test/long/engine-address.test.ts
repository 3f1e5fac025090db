/** Where the Engine is: behind TLS with certificates of both sides, and by Docker's contexts, with whole jobs run over each. */
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createServer } from 'node:tls';
import { describe, expect, test } from 'vitest';
import { machineSocket } from '../support/engine-http.ts';
import { images } from '../support/images.ts';
import { onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

const config = `pools: { default: { runtime: docker, image: "${images.base}" } }`;

/** Certificates of an authority, a server at 127.0.0.1 and a client, as Docker's manual makes them. */
function certificates(dir: string): void {
  execFileSync(
    'sh',
    [
      '-ec',
      `openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=ca -keyout ca-key.pem -out ca.pem
      sign() {
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$1" -keyout "$2" -out request.pem
        echo "$4" >extensions
        openssl x509 -req -days 2 -in request.pem -CA ca.pem -CAkey ca-key.pem -CAcreateserial -extfile extensions -out "$3"
      }
      sign server server-key.pem server-cert.pem subjectAltName=IP:127.0.0.1
      sign client key.pem cert.pem extendedKeyUsage=clientAuth`,
    ],
    { cwd: dir, stdio: 'pipe' },
  );
}

/** What dockerd is with --tlsverify: nothing gets past this door without a certificate of its authority. */
async function tlsDoor() {
  const dir = mkdtempSync(join(tmpdir(), 'ojtls-'));
  certificates(dir);
  const read = (name: string) => readFileSync(join(dir, name));
  const open = new Set<Socket>();
  const material = { ca: read('ca.pem'), cert: read('server-cert.pem'), key: read('server-key.pem') };
  // Only the client tells that it was refused.
  const server = createServer({ ...material, requestCert: true, rejectUnauthorized: true }, (visitor) => {
    const engine = connect({ path: machineSocket, allowHalfOpen: true });
    for (const [one, other] of [
      [visitor, engine],
      [engine, visitor],
    ] as const) {
      open.add(one);
      one.on('error', () => other.destroy());
      one.on('close', () => {
        open.delete(one);
        other.destroy();
      });
      one.pipe(other);
    }
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  const port = typeof address === 'object' ? address?.port : 0;
  return {
    dir,
    url: `tcp://127.0.0.1:${port}`,
    async [Symbol.asyncDispose]() {
      const closed = once(server, 'close');
      server.close();
      for (const socket of open) socket.destroy();
      await closed;
      rmSync(dir, { recursive: true });
    },
  };
}

/** A Docker configuration with one context, as `docker context create` writes it. */
function writeContext(folder: string, name: string, host: string, tls: string | null): void {
  const id = createHash('sha256').update(name).digest('hex');
  const meta = join(folder, 'contexts', 'meta', id);
  mkdirSync(meta, { recursive: true });
  writeFileSync(
    join(meta, 'meta.json'),
    JSON.stringify({ Name: name, Metadata: {}, Endpoints: { docker: { Host: host, SkipTLSVerify: false } } }),
  );
  if (tls === null) return;
  const material = join(folder, 'contexts', 'tls', id, 'docker');
  mkdirSync(material, { recursive: true });
  for (const file of ['ca.pem', 'cert.pem', 'key.pem']) writeFileSync(join(material, file), readFileSync(join(tls, file)));
}

describe.skipIf(lacks('docker', 'busybox'))('the Engine is found', () => {
  test('behind TLS, by variables and by a context; nobody without a certificate gets in', async () => {
    await using door = await tlsDoor();
    const byVariables = { DOCKER_HOST: door.url, DOCKER_TLS_VERIFY: '1', DOCKER_CERT_PATH: door.dir };
    {
      await using here = await onejob({ config, env: byVariables });
      await here.up();
      writeFileSync(join(here.cwd, 'file'), 'sent\n');
      const ended = await here.run('--', 'sh', '-c', 'cat file; echo err >&2; exit 7').ended;
      expect(ended).toMatchObject({ code: 7, stdout: 'sent\n' });
      // Its own path of that name would be mounted, or made.
      const refused = await here.run('--no-workspace', '--volume', `${here.cwd}:/in`, '--', 'ls', '/in').ended;
      expect(refused.code).toBe(125);
      expect(refused.stderr).toContain(`is on this host, but the Engine at ${door.url} is not`);
      const found = await here.cli(['doctor']).ended;
      expect(found.stdout).toContain(`The Engine at ${door.url} is not on this host`);
      expect(found.stdout).toContain('Pools cannot use network: internet, because the Engine is not on this host.');
    }
    {
      const docker = mkdtempSync(join(tmpdir(), 'ojctx-'));
      writeContext(docker, 'far', door.url, door.dir);
      writeFileSync(join(docker, 'config.json'), JSON.stringify({ currentContext: 'far' }));
      await using here = await onejob({ config, env: { DOCKER_CONFIG: docker } });
      await here.up();
      expect(await here.run('--no-workspace', '--', 'echo', 'over a context').ended).toMatchObject({ stdout: 'over a context\n' });
      rmSync(docker, { recursive: true });
    }
    {
      const bare = mkdtempSync(join(tmpdir(), 'ojtls-'));
      writeFileSync(join(bare, 'ca.pem'), readFileSync(join(door.dir, 'ca.pem')));
      await using here = await onejob({ config, env: { ...byVariables, DOCKER_CERT_PATH: bare } });
      const found = await here.cli(['doctor']).ended;
      expect(found.code).not.toBe(0);
      expect(found.stdout + found.stderr).toMatch(/certificate|alert|handshake|hang up|ECONNRESET/i);
      rmSync(bare, { recursive: true });
    }
  });

  test('by DOCKER_CONTEXT before the current context; one that is not there is an error', async () => {
    const docker = mkdtempSync(join(tmpdir(), 'ojctx-'));
    writeContext(docker, 'here', `unix://${machineSocket}`, null);
    writeContext(docker, 'nowhere', 'unix:///nonexistent/docker.sock', null);
    writeFileSync(join(docker, 'config.json'), JSON.stringify({ currentContext: 'nowhere' }));
    {
      await using here = await onejob({ config, env: { DOCKER_CONFIG: docker, DOCKER_CONTEXT: 'here' } });
      await here.up();
      expect((await here.run('--no-workspace', '--', 'echo', 'found').ended).stdout).toBe('found\n');
    }
    {
      await using here = await onejob({ config, env: { DOCKER_CONFIG: docker, DOCKER_CONTEXT: 'typo' } });
      const ended = await here.cli(['up']).ended;
      expect(ended.code).not.toBe(0);
      expect(ended.stderr + ended.stdout).toContain('The Docker context "typo" was not found');
    }
    rmSync(docker, { recursive: true });
  });
});
