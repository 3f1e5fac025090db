/** Jobs that misuse the engine of their agent, with all rights in it. What the host's Engine and other jobs notice of them is asked afterwards. */
import { once } from 'node:events';
import { readdirSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { clientImage } from '../support/engine-base.ts';
import { boxes, makeWholeImage } from '../support/job-containers.ts';
import { lacks } from '../support/require.ts';

/** The docker command, and Perl, which can make any system call. */
const image = {
  name: 'onejob-test/docker-and-perl:1',
  dockerfile: `FROM debian:trixie-slim AS all
RUN mkdir -p /c/usr/bin /c/usr/lib/x86_64-linux-gnu; cp /usr/bin/perl /c/usr/bin/; cp -a /usr/lib/x86_64-linux-gnu/perl-base /c/usr/lib/x86_64-linux-gnu/; \\
    for file in $(ldd /usr/bin/perl | grep -o '/[^ :]*'); do mkdir -p "/c$(dirname "$file")"; cp -L "$file" "/c$file"; done
FROM ${clientImage}
COPY --from=all /c/ /
`,
};

const withAllRights = 'docker run --rm --privileged --pid host --network host -v /:/h box:1';

/** System calls of x86-64 that no container of the Engine may make. */
const closed = [
  'acct=163 settimeofday=164 swapon=167 reboot=169 iopl=172 ioperm=173 init_module=175 delete_module=176 quotactl=179',
  'clock_settime=227 kexec_load=246 add_key=248 request_key=249 perf_event_open=298 open_by_handle_at=304 finit_module=313',
  'kexec_file_load=320 bpf=321 userfaultfd=323 io_uring_setup=425',
].join(' ');

describe.skipIf(lacks('docker', 'dockerd', 'busybox', 'engineBase'))('a hostile job with an engine', () => {
  const box = boxes('agents: 2, memory: 3GiB, pids: 500', { image });
  const start = (...lines: readonly string[]) =>
    box.home.run('--pool', 'box', '--no-workspace', '--', 'sh', '-c', lines.join('\n'));

  test('makes no system call that a container of the host may not make', async () => {
    const perl =
      'for (@ARGV) { my ($name, $number) = split /=/; $! = 0; syscall($number, 0, 0, 0, 0, 0); print "$name ", 0 + $!, "\\n" }';
    const said = await box.job(makeWholeImage, `${withAllRights} perl -e '${perl}' ${closed}`, 'echo end');
    const lines = said.trim().split('\n');
    expect(lines.at(-1)).toBe('end');
    // EPERM, or ENOSYS.
    expect(lines.slice(0, -1).filter((line) => !/ (1|38)$/.test(line))).toEqual([]);
    expect(lines).toHaveLength(closed.split(' ').length + 1);
  }, 180_000);

  test('reaches no other agent over their network, with all rights or without', async () => {
    const server = start(
      'echo secret >/tmp/index.html; httpd -p 8099 -h /tmp',
      `echo "at $(ip -4 -o addr show scope global | sed -n 's/.* inet \\([0-9.]*\\).*/\\1/p' | head -n 1)"`,
      'mkfifo /tmp/wait; timeout 120 cat /tmp/wait',
    );
    const [, address = ''] = await server.says(/^at ([0-9.]+)$/m);
    const look = `timeout 5 perl -e 'use Socket; socket my $s, AF_INET, SOCK_STREAM, 0; print connect($s, pack_sockaddr_in 8099, inet_aton "${address}") ? "reached" : "not", "\\n"'`;
    // What looks finds a server where there is one. Elsewhere nobody answers at all, until its time is over.
    expect(await box.job('httpd -p 8099 -h /tmp', look.replace(address, '127.0.0.1'))).toBe('reached\n');
    const looks = [look, `${withAllRights} ${look}`, `docker run --rm box:1 ${look}`];
    const said = await box.job(makeWholeImage, ...looks.map((one) => `${one} || echo nobody`), 'echo end');
    // Refused, or without any answer.
    expect(said).toMatch(/^((not|nobody)\n){3}end\n$/);
    for (const { id } of await box.home.api.jobs({ all: false, pool: null })) await box.home.cli(['cancel', id]).ended;
    await server.ended;
  }, 240_000);

  test.each([
    ['default', 'reached'],
    ['internet', 'not'],
    ['none', 'not'],
  ])(
    'reaches this host from a container as its network says (%s: %s)',
    async (network, said) => {
      await using server = createServer((socket) => socket.end('reached\n')).listen(0, '0.0.0.0');
      await once(server, 'listening');
      const { port } = server.address() as AddressInfo;
      await using here = await box.another(`network: ${network}`);
      await here.up();
      const look = `nc -w 5 ${box.engine.address} ${port} </dev/null 2>/dev/null || echo not`;
      const ways = [look, `docker run --rm box:1 sh -c '${look}'`, `${withAllRights} sh -c '${look}'`];
      const script = [makeWholeImage, ...ways].join('\n');
      const { code, stdout, stderr } = await here.run('--pool', 'box', '--no-workspace', '--', 'sh', '-ec', script).ended;
      expect([code, stdout], stderr).toEqual([0, `${said}\n`.repeat(3)]);
    },
    180_000,
  );

  test('uses up what the kernel counts by user, and its neighbour of the same pool has all of its own', async () => {
    const eat = [
      "perl -e '$| = 1; my (@files, @all, $keys); while ((my $one = syscall 253) >= 0) { push @files, $one }; pipe my $in, my $out;",
      'for (1 .. 250) { my $pid = fork // last; push @all, $pid; if (!$pid) { my $name = "k$$"; syswrite $out, syscall(250, 1, $name) >= 0 ? "+" : "-"; sleep }',
      'sysread $in, my $one, 1; $keys++ if $one eq "+" }; print scalar(@files), " inotify instances, ", $keys + 0, " keyrings\\n";',
    ].join(' ');
    const greedy = start(`${eat} sleep'`);
    const { 0: taken } = await greedy.says(/^\d+ inotify instances, \d+ keyrings$/m);
    expect(taken).not.toMatch(/\b0 /);
    const { stdout } = await start(`${eat} kill KILL => @all'`).ended;
    expect(stdout.trim()).toBe(taken);
    for (const { id } of await box.home.api.jobs({ all: false, pool: null })) await box.home.cli(['cancel', id]).ended;
    await greedy.ended;
  }, 180_000);

  test('leaves files of every kind, and its next neighbour finds none of them', async () => {
    const files = [
      'mkdir many; perl -e \'for (1 .. 20000) { open my $f, ">", "many/$_" }\'',
      'perl -e \'open my $f, ">", "sparse"; truncate $f, 2 ** 40 or die\'; mkfifo fifo; ln -s / root; ln many/1 hard; touch "new\nline" ./-rf',
      'perl -e \'for (1 .. 800) { mkdir "deep"; chdir "deep" or die }\'',
    ];
    const inside = [
      ...files,
      'chown -R 4242:4343 many; chmod 0 many; perl -e \'use Socket; socket my $s, AF_UNIX, SOCK_STREAM, 0; bind $s, pack_sockaddr_un "sock"\'',
    ];
    const { code, stderr } = await start(
      'set -e',
      makeWholeImage,
      `cd /tmp; ${files.join('; ')}`,
      `docker run --rm --privileged -v left:/v -w /v box:1 sh -ec ${JSON.stringify(inside.join('; ')).replaceAll('$', '\\$')}`,
      'for n in 1 2 3 4 5 6 7 8; do docker run -d --restart always box:1 sleep 1000; done >/dev/null',
      // Its own answer never comes.
      `timeout -s KILL 10 ${withAllRights} sh -c 'kill -STOP $(pidof dockerd); kill -9 $(pidof containerd)' || true`,
    ).ended;
    expect(code, stderr).toBe(0);
    expect(await box.job('ls /tmp; docker ps -aq; docker volume ls -q; echo end')).toBe('end\n');
    await expect
      .poll(async () => readdirSync(join(box.home.stateDir, 'engines')).length, { timeout: 60_000 })
      .toBeLessThanOrEqual(2);
  }, 240_000);

  test('does not decide what the next one calls an image', async () => {
    const names = ['onejob/engine:1', 'localhost/onejob:1', image.name, 'debian:trixie-slim'];
    const { code } = await start('set -e', makeWholeImage, ...names.map((name) => `docker tag box:1 ${name}`)).ended;
    expect(code).toBe(0);
    expect(await box.job('docker images -q; test -x /usr/bin/docker && echo end')).toBe('end\n');
  }, 180_000);
});
