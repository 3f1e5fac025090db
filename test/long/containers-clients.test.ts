/** What jobs do with the engine of their agent, each as its program does it. */
import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { buildkit, buildkitVersion } from '../support/buildkit-programs.ts';
import { clientImage } from '../support/engine-base.ts';
import { boxes, makeWholeImage } from '../support/job-containers.ts';
import { lacks } from '../support/require.ts';

/** The docker command, and a Docker Engine to start in a container. */
const image = {
  name: 'onejob-test/docker-in-docker:1',
  dockerfile: `FROM debian:trixie-slim AS all
RUN mkdir -p /c/usr/bin; for name in dockerd containerd containerd-shim-runc-v2 runc docker-init docker-proxy; do \\
      file=$(PATH=$PATH:/usr/sbin:/usr/libexec/docker command -v $name) || continue; cp "$file" /c/usr/bin/; \\
      for lib in $(ldd "$file" | grep -o '/[^ :]*'); do if [ -f "$lib" ]; then mkdir -p "/c$(dirname "$lib")"; cp -L "$lib" "/c$lib"; fi; done; \\
    done
FROM ${clientImage}
COPY --from=all /c/ /
`,
};

describe.skipIf(lacks('docker', 'dockerd', 'busybox', 'engineBase'))('programs of jobs with containers', () => {
  const volumes = lacks('buildkit') ? [] : [`${buildkit}:/buildkit`];
  const box = boxes(`user: "0:0", memory: 4GiB, volumes: ${JSON.stringify(volumes)}`, { image });

  test('docker exec and cp work, and a health check becomes healthy', async () => {
    const said = await box.job(
      makeWholeImage,
      'docker run -d --name one --health-cmd "test -e /ready" --health-interval 1s box:1 sh -c "sleep 1; touch /ready; sleep 300" >/dev/null',
      'until [ "$(docker inspect -f "{{.State.Health.Status}}" one)" = healthy ]; do sleep 0.2; done; echo healthy',
      'echo given >file; docker cp -q file one:/given; docker exec -e A=b one sh -c "cat /given; echo \\$A made >/made"',
      'docker cp -q one:/made - | tar -xO',
      'docker rm -f one >/dev/null',
    );
    expect(said).toBe('healthy\ngiven\nb made\n');
  }, 120_000);

  test('buildx bakes with its default driver, and hands the images to the engine', async () => {
    writeFileSync(
      join(box.home.cwd, 'docker-bake.hcl'),
      'group "default" { targets = ["a", "b"] }\ntarget "a" { tags = ["a:1"] }\n',
    );
    writeFileSync(join(box.home.cwd, 'Dockerfile'), 'FROM box:1\nARG WHO=nobody\nRUN echo by $WHO >/who\n');
    writeFileSync(join(box.home.cwd, 'b.hcl'), 'target "b" {\n  tags = ["b:1"]\n  args = { WHO = "bake" }\n}\n');
    const said = await box.job(
      makeWholeImage,
      'docker buildx bake -f docker-bake.hcl -f b.hcl --progress quiet >/dev/null',
      'docker run --rm a:1 cat /who; docker run --rm b:1 cat /who',
    );
    expect(said).toBe('by nobody\nby bake\n');
  }, 120_000);

  test.skipIf(lacks('buildkit'))(
    'buildx makes a builder in a container, as docker/setup-buildx-action does, and hands the image to the engine',
    async () => {
      // It wants to pull the image, and takes the one that is there when that fails: at this address at once.
      const builder = '127.0.0.1:9/buildkit:1';
      const said = await box.job(
        `tar -C / -c bin etc lib lib64 tmp usr buildkit | docker import -c 'ENTRYPOINT ["/buildkit/buildkitd"]' -c 'ENV PATH=/buildkit:/usr/bin:/bin' - ${builder} >/dev/null`,
        `docker buildx create --name own --driver docker-container --driver-opt image=${builder} --use`,
        'docker buildx inspect --bootstrap | sed -n "s/^BuildKit version: *//p; s/^Buildkit: *//p"',
        'tar -C / -cf files.tar bin etc tmp; printf 12345 >secret',
        `printf 'FROM scratch\\nADD files.tar /\\nRUN --mount=type=secret,id=s wc -c </run/secrets/s >/size\\n' >Dockerfile`,
        'docker buildx build -q --load --secret id=s,src=secret -t mine . >/dev/null',
        'docker run --rm mine cat /size',
        'docker buildx rm own; docker ps -aq',
      );
      expect(said).toBe(`own\nv${buildkitVersion}\n5\n`);
    },
    180_000,
  );

  test('a folder that only the sandbox has is not there for the engine, which says so', async () => {
    const said = await box.job(makeWholeImage, 'mkdir /mine; docker run --rm -v /mine:/w box:1 true 2>&1 || echo refused');
    expect(said).toMatch(/error while creating mount source path '\/mine'.*refused/s);
  }, 120_000);

  test('a container with the socket of the engine starts others, and removes them by their label', async () => {
    const said = await box.job(
      makeWholeImage,
      'docker run -d --label of=session box:1 sleep 300 >/dev/null',
      'docker run --rm -v /var/run/docker.sock:/var/run/docker.sock box:1 sh -c \\',
      '  "docker ps -q --filter label=of=session | wc -l; docker ps -q --filter label=of=session | xargs docker rm -f >/dev/null"',
      'docker ps -q --filter label=of=session | wc -l',
    );
    expect(said.match(/\d+/g)).toEqual(['1', '0']);
  }, 120_000);

  test('a step runs as the docker plugin of Buildkite runs it', async () => {
    // The words of docker-buildkite-plugin 5.9 (commands/run.sh) for a command, with its defaults but for the terminal.
    const said = await box.job(
      makeWholeImage,
      'echo here >file',
      'docker run -i --rm --init --volume "$PWD:/workdir" --workdir /workdir --env BUILDKITE_JOB_ID \\',
      "  --env BUILDKITE_BUILD_ID --env BUILDKITE_AGENT_ACCESS_TOKEN box:1 /bin/sh -e -c 'cat file; echo made >made'",
      'cat made',
    );
    expect(said).toBe('here\nmade\n');
  }, 120_000);

  // With version 2 of control groups, nobody has tried it.
  test.skipIf(existsSync('/sys/fs/cgroup/cgroup.controllers'))(
    'an Engine in a container starts, and is refused what containers of its own need',
    async () => {
      const said = await box.job(
        makeWholeImage,
        'docker run -d --name dind --privileged -v /tmp/dind:/var/run -v /var/lib/docker box:1 dockerd --storage-driver vfs --iptables=false \\',
        '  --ip6tables=false --bridge none >/dev/null',
        'export DOCKER_HOST=unix:///tmp/dind/docker.sock',
        'until docker version >/dev/null 2>&1; do [ "$(DOCKER_HOST= docker ps -q)" ] || exit 1; sleep 0.2; done',
        'tar -C / -c bin | docker import - inner:1 >/dev/null',
        'docker run --rm --network none inner:1 true 2>&1 || echo refused',
      );
      expect(said).toMatch(/unable to apply cgroup configuration: .*permission denied.*refused/s);
    },
    180_000,
  );
});
