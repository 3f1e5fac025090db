import { expect, test } from 'vitest';
import { setTimeout as sleep } from 'node:timers/promises';
import { execSync } from 'node:child_process';
import { untilIdle } from '../support/buildkite.ts';
import { aDay, connected, containerOf, endOf, expectOnce, troubleOf, untilRunning, works } from '../support/buildkite-days.ts';
test('lost', async () => {
    await using day = await aDay({ agents: 2, pool: 'name: "b.{n}"' });
    const { bench, here } = day;
    const { buildkite } = bench;
    const daemon = await here.up();
    await untilIdle(bench, 2);
    const id = bench.hold('lost');
    const { agent } = await untilRunning(bench, id);
    const n = buildkite.requests.length;
    buildkite.loseAgent(agent.name);
    await sleep(8000);
    for (const r of buildkite.requests.slice(n)) if (r.agent===agent.name || r.token !== 'session') console.log(r.method, r.route, r.token, r.agent, r.status, r.from, r.userAgent, r.at % 100000);
    try { console.log(execSync(`docker ps --format '{{.ID}} {{.Names}}' | grep ${agent.name}| while read a b; do echo $b; docker logs $a 2>&1 | tail -20; done`).toString()); } catch {}
    console.log((await here.cli(['status']).ended).stdout, daemon.child.stdout.slice(-3000));
    await untilIdle(bench, 2, 10000);
    await works(bench);
    await endOf(day, daemon);
});
