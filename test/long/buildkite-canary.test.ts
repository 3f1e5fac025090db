/**
 * S8: no long-lived credential of Buildkite's comes near a job, nor to light anywhere else; an untrusted job has none of the service's
 * tokens at all. A job takes what it can read of its container, and tries what its tokens may do; everything that the Engine, the host's
 * processes, the state directory and onejob's own outputs tell is searched. The values that a job may have are where they must be, which
 * shows that the search sees.
 */
import { chmodSync, mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { engineTells, filesIn, found, needlesOf, outputs, processes, prying } from '../support/azure-secrets.ts';
import { aDay, endOf, fork, untilSays, works } from '../support/buildkite-days.ts';
import { untilAsking } from '../support/buildkite-host.ts';
import { processesOf } from '../support/census-processes.ts';
import type { Home } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

const image = 'debian:stable-slim';

/** Everything outside of containers, right now. */
async function everywhere(here: Home): Promise<(readonly [string, Buffer | string])[]> {
  const { owner } = await here.api.status();
  // Other stand-ins may be at work on this host, whose tokens begin as ours do.
  const ours = new Set(processesOf({ stateDir: here.stateDir, owner }).map(({ pid }) => String(pid)));
  const own = [...processes()].filter(([path]) => ours.has(path.split('/')[2] ?? ''));
  expect(own.length).toBeGreaterThan(0);
  return [...(await engineTells(owner, image)), ...own, ...filesIn(here.stateDir), ...(await outputs(here))];
}

/** What a job's token gets where its agent calls, call by call: `METHOD PATH TOKEN STATUS BODY`. With bash alone. */
const calls = (otherJob: string): string => `
set +e
endpoint=\${BUILDKITE_AGENT_ENDPOINT#http://}; address=\${endpoint%%/*}; host=\${address%:*}; port=\${address##*:}
ask() { exec 3<>/dev/tcp/$host/$port || return; printf '%s %s HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\nAuthorization: Token %s\\r\\nContent-Type: application/json\\r\\nContent-Length: %s\\r\\n\\r\\n%s' "$1" "/v3/$2" "$3" "\${#4}" "$4" >&3; echo "ASKED $1 $2 $(tr -d '\\r' <&3 | head -c 4000 | tr '\\n' ' ')"; exec 3>&-; }
t=$BUILDKITE_AGENT_ACCESS_TOKEN
for path in metrics stacks token jobs/${otherJob} "jobs/${otherJob}/secrets?key=X" state v1/state ../v1/state v1/offers; do ask GET $path "$t"; done
ask POST register "$t" '{"name":"evil","meta_data":["queue=default"]}'
ask POST stacks/register "$t" '{"key":"evil","type":"custom","queue_key":"default","metadata":{}}'
ask PUT jobs/${otherJob}/accept "$t"; ask PUT jobs/${otherJob}/acquire "$t"
ask PUT jobs/${otherJob}/finish "$t" '{"exit_status":"0"}'
ask POST jobs/$BUILDKITE_JOB_ID/oidc/tokens "$t" '{}'
ask GET metrics guessed; ask POST register guessed '{"name":"evil"}'
for port in 1 22 80 443 2375 2376 8080; do (exec 3<>/dev/tcp/$host/$port) 2>/dev/null && echo "OPEN $port"; done
echo asked all
`;

describe.skipIf(lacks('docker', 'image', 'buildkiteAgent', 'root'))('the canary', () => {
  test('no token of the service is where it should not be, but in the job that it is for', async () => {
    await using day = await aDay({ agents: 2 });
    const { bench, here } = day;
    const { buildkite } = bench;
    const out = join(here.dir, 'out');
    mkdirSync(out);
    chmodSync(out, 0o777);
    here.configure(bench.config({ agents: 2 }).replace('/go"', `/go", "${out}:/out:rw"`));
    const daemon = await here.up();
    await untilAsking(bench);
    const other = bench.hold('other', { env: { OTHERS_OWN: 'not-for-you-1234567' } });
    await untilSays(bench, other, /^began other$/m);
    const early = await everywhere(here);
    const id = buildkite.queueJob({
      command: `${prying.replace('/opt/agent ', '')}\nset +e; for fd in /proc/*/fd/*; do readlink $fd; done >/out/fds 2>/dev/null; cat /proc/*/maps >/out/maps 2>/dev/null;\necho asked all\nuntil [ -e /go/pry ]; do sleep 0.1; done`,
      env: { MY_OWN: 'this-is-mine-7654321' },
    });
    await untilSays(bench, id, /pried \d+/);
    await untilSays(bench, id, /^asked all$/m);
    const during = await everywhere(here);
    bench.go('pry');
    const job = await buildkite.jobEnded(id);
    expect(job.exit, job.log).toBe(0);
    bench.go('other');
    await buildkite.jobEnded(other);
    await works(bench);
    const after = await everywhere(here);
    const pried = [...filesIn(out), ['log', job.log] as [string, string]];

    // Whatever the service ever handed out begins so; sealed tokens begin otherwise.
    const theirs = ['bkct_', 'bkaa_', 'bkaj_', 'bkjat_'].map((start) => ({
      what: `a token (${start})`,
      bytes: Buffer.from(start),
    }));
    const tokens = [...theirs, ...needlesOf('the registration token', buildkite.token)];
    // A trusted job has what any job of Buildkite has, and nothing that outlives it.
    const cluster = needlesOf('the registration token', buildkite.token);
    expect(found([...cluster, ...needlesOf("another job's variable", 'not-for-you-1234567')], pried)).toEqual([]);
    const log: [string, string] = ['daemon log', daemon.child.stdout + daemon.child.stderr];
    expect(found(cluster, [...early, ...during, ...after, log])).toEqual([]);
    const files = [...early, ...during, ...after, log].filter(([path]) => !path.startsWith('/proc/'));
    expect(found(tokens, files)).toEqual([]);
    // What a job is given shows that the search sees: its own variable, and its token.
    expect(found(needlesOf('its own', 'this-is-mine-7654321'), pried)).not.toEqual([]);
    const alias = /^BUILDKITE_AGENT_ACCESS_TOKEN=(\S+)/m.exec(readFileSync(join(out, 'env'), 'utf8'))?.[1] ?? '';
    expect(alias).toMatch(/^bkaj_/);
    // Neither the alias is written anywhere, nor told.
    const outside = [...early, ...after, log].filter(([path]) => !path.startsWith('/proc/'));
    expect(found(needlesOf('the alias', alias), outside)).toEqual([]);

    await endOf(day, daemon);
    expect(found(tokens, filesIn(here.stateDir))).toEqual([]);
  });

  test('an untrusted job has no token of the service’s, and can do nothing with its own but what is its', async () => {
    await using day = await aDay({ agents: 2 });
    const { bench, here } = day;
    const { buildkite } = bench;
    const daemon = await here.up();
    const other = bench.hold('other', { env: { OTHERS_OWN: 'not-for-you-1234567' } });
    await untilSays(bench, other, /^began other$/m);
    const all = '(env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null) | base64 -w 0';
    // Encoded, since its agent masks what it knows to be a token.
    const command = `echo "all: $(${all})"; ${calls(other)}`;
    const job = await bench.job(command, fork);
    expect(job.exit, job.log).toBe(0);
    const seen = Buffer.from(/^all: (\S+)$/m.exec(job.log)?.[1] ?? '', 'base64').toString('latin1');
    expect(seen).toMatch(/BUILDKITE_AGENT_ACCESS_TOKEN=ojf_/);
    expect(`${seen}${job.log}`).not.toMatch(/bk(ct|aa|aj|jat)_|not-for-you/);
    const asked = [...job.log.matchAll(/^ASKED (\S+ \S+) HTTP\/1\.1 (\d+)/gm)].map(([, what, status]) => [what, Number(status)]);
    expect(asked.length, job.log).toBeGreaterThan(15);
    // What a job may have of its own job is all.
    expect(asked.filter(([, status]) => Number(status) < 400)).toEqual([]);
    expect(buildkite.agents().filter(({ name }) => name === 'evil')).toEqual([]);
    expect(job.log).not.toMatch(/^OPEN (?!22$)/m);
    bench.go('other');
    await buildkite.jobEnded(other);
    await endOf(day, daemon);
  });

  test('what onejob says when the service refuses it, in every way, names no token', async () => {
    await using day = await aDay();
    const { bench, here } = day;
    const { buildkite } = bench;
    for (const fault of [
      { kind: 'error', status: 400, message: `Bad header: Token ${buildkite.token}` },
      { kind: 'error', status: 403, message: `The token ${buildkite.token} may not do this` },
      { kind: 'error', status: 500, message: buildkite.token },
      { kind: 'garbage' },
    ] as const) {
      buildkite.faults.add(fault, { route: 'stacks/register' });
      const tries = () => buildkite.requests.filter(({ route }) => route === 'stacks/register').length;
      const before = tries();
      const daemon = await here.up();
      await expect.poll(tries).toBeGreaterThan(before);
      const said = [...(await everywhere(here)), ['daemon log', daemon.child.stdout + daemon.child.stderr] as const];
      expect(found(needlesOf('the registration token', buildkite.token), said)).toEqual([]);
      buildkite.faults.clear();
      await daemon.stop();
    }
    await endOf(day, await here.up());
  });
});
