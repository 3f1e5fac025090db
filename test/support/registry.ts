/** A registry with one image, which it has under every name, for Engines that reach no other. */
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { buffer } from 'node:stream/consumers';
import { pipeline } from 'node:stream/promises';
import { gzipSync } from 'node:zlib';
import { extract } from 'tar-stream';
import type { Engine } from './engine-http.ts';

export interface Registry extends AsyncDisposable {
  readonly port: number;
  readonly digest: string;
  /** Paths that were asked for by somebody who may. */
  readonly asked: readonly string[];
}

const docker = 'application/vnd.docker';

/** `password` as `USER:PASSWORD`; null: everybody may pull. */
export async function registryOf(api: Engine, image: string, password: string | null = null): Promise<Registry> {
  const files = await filesOf(api, image);
  const [described] = JSON.parse(String(files.get('manifest.json'))) as { readonly Config: string; readonly Layers: string[] }[];
  if (described === undefined) throw new Error(`no image ${image}`);
  const blobs = new Map<string, Buffer>();
  const put = (mediaType: string, content: Buffer) => {
    const digest = `sha256:${createHash('sha256').update(content).digest('hex')}`;
    blobs.set(digest, content);
    return { mediaType, digest, size: content.length };
  };
  const fileOf = (name: string) => files.get(name) ?? Buffer.alloc(0);
  const manifestType = `${docker}.distribution.manifest.v2+json`;
  const manifest = {
    schemaVersion: 2,
    mediaType: manifestType,
    config: put(`${docker}.container.image.v1+json`, fileOf(described.Config)),
    layers: described.Layers.map((layer) => put(`${docker}.image.rootfs.diff.tar.gzip`, gzipSync(fileOf(layer)))),
  };
  const { digest } = put(manifestType, Buffer.from(JSON.stringify(manifest)));
  const asked: string[] = [];
  const wanted = password === null ? null : `Basic ${Buffer.from(password).toString('base64')}`;
  const server = createServer(({ url = '', method, headers }, reply) => {
    // Without it an Engine does not ask a mirror for a description.
    reply.setHeader('docker-distribution-api-version', 'registry/2.0');
    if (wanted !== null && headers.authorization !== wanted)
      return reply.writeHead(401, { 'www-authenticate': 'Basic realm="test"' }).end();
    asked.push(url);
    const isManifest = url.includes('/manifests/');
    const content = isManifest ? blobs.get(digest) : blobs.get(url.slice(url.lastIndexOf('/') + 1));
    if (url !== '/v2/' && content === undefined) return reply.writeHead(404).end();
    reply.setHeader('content-type', isManifest ? manifestType : 'application/octet-stream');
    if (isManifest) reply.setHeader('docker-content-digest', digest);
    reply.setHeader('content-length', content?.length ?? 0);
    return reply.end(method === 'HEAD' ? undefined : content);
  });
  server.listen(0);
  await once(server, 'listening');
  return {
    port: (server.address() as AddressInfo).port,
    digest,
    asked,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}

async function filesOf(api: Engine, image: string): Promise<Map<string, Buffer>> {
  const files = new Map<string, Buffer>();
  const reader = extract();
  const read = pipeline(await api.stream('GET', `/images/${image}/get`), reader);
  for await (const entry of reader) files.set(entry.header.name, await buffer(entry));
  await read;
  return files;
}
