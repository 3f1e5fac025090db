/** Many readers of one log at once, over TCP as browsers are, and a log of a gigabyte: what the daemon needs for them stays small. */
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { chmodSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import http, { type IncomingMessage } from 'node:http';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { readFrames } from '../../src/contract/frames.ts';
import { buildDashboard, openBrowser, visit } from '../../web/test/browser.ts';
import { type Daemon, type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

/** Bytes of memory that a process has now, from proc_pid_status(5). */
function memoryOf({ pid }: Daemon): number {
  return Number(/^VmRSS:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]) * 1024;
}

/** The most memory that it has had since it was last forgotten, from the same. */
function peakOf({ pid }: Daemon): number {
  return Number(/^VmHWM:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]) * 1024;
}

const forgetPeak = ({ pid }: Daemon): void => writeFileSync(`/proc/${pid}/clear_refs`, '5');

/** How to ask for logs over TCP with a token that may read. */
async function overTcp(here: Home) {
  const { stdout, stderr } = await here.cli(['dashboard', '--json']).ended;
  const base = new URL((JSON.parse(stdout || stderr) as { url: string }).url).origin;
  const authorization = `Bearer ${readFileSync(join(here.stateDir, 'api', 'read.token'), 'utf8').trim()}`;
  return async (query: string): Promise<IncomingMessage> => {
    const request = http.get(`${base}/v1/logs?${query}`, { agent: false, headers: { authorization } });
    const [answer] = (await once(request, 'response')) as [IncomingMessage];
    expect(answer.statusCode).toBe(200);
    return answer.on('error', () => {});
  };
}

/** Reads an answer to its end; `heard` is called with each piece. */
async function follow(answer: IncomingMessage, heard: (text: string) => void) {
  const hash = createHash('sha256');
  let [size, missing] = [0, 0];
  for await (const { stream, bytes, ...rest } of readFrames(answer)) {
    if ('gap' in rest && rest.gap !== undefined) missing += rest.gap.missing.stdout;
    if (stream !== 'stdout') continue;
    hash.update(bytes);
    size += bytes.length;
    heard(Buffer.from(bytes.subarray(-100)).toString());
  }
  return { size, missing, hash: hash.digest('hex') };
}

const MiB = 2 ** 20;
const readers = 50;

test.skipIf(lacks('bubblewrap'))(
  '50 clients follow one log, and 50 more read nothing: all get the same, and memory is bounded',
  async () => {
    await using here = await onejob({ config: '' });
    const flags = join(here.dir, 'flags');
    mkdirSync(flags);
    chmodSync(flags, 0o777);
    here.configure(`pools: { default: { agents: 1, runtime: process, volumes: ["${flags}:/flags"] } }`);
    const daemon = await here.up();
    const ask = await overTcp(here);
    const line = 'x'.repeat(1_000);
    const script = `yes '${line}' | head -c ${16_000 * 1_001}; echo HALF; until [ -e /flags/go ]; do sleep 0.05; done; seq 1 1000; echo LAST`;
    const { id } = await here.api.submit({ command: ['sh', '-c', script] });
    for await (const { bytes } of here.api.logs({ job: id }, { follow: true }))
      if (/HALF/.test(Buffer.from(bytes).toString())) break;
    const before = memoryOf(daemon);
    forgetPeak(daemon);

    // As the page of a job asks: its last lines, and what comes.
    const half: Promise<void>[] = [];
    const ends = Array.from({ length: readers }, async () => {
      const { promise, resolve } = Promise.withResolvers<void>();
      half.push(promise);
      return follow(await ask(`job=${id}&tail=4500&follow=true`), (text) => {
        if (text.includes('HALF')) resolve();
      });
    });
    await Promise.all(half);
    const [peak, following] = [peakOf(daemon), memoryOf(daemon)];

    forgetPeak(daemon);
    const stuck = await Promise.all(Array.from({ length: readers }, () => ask(`job=${id}&tail=4500&follow=true`)));
    for (const one of stuck) one.pause();
    // Last in the row, so when it has its answer they were answered, too, as far as they take it.
    const start = performance.now();
    expect((await follow(await ask(`job=${id}&tail=10`), () => {})).size).toBe(9 * 1_001 + 5);
    const seconds = (performance.now() - start) / 1000;
    writeFileSync(join(flags, 'go'), '');
    const all = await Promise.all(ends);
    const peakStuck = peakOf(daemon);
    for (const one of stuck) one.destroy();
    const mib = (bytes: number) => `${bytes >> 20} MiB`;
    console.log(
      `${readers} followers: ${mib(before)} before, ${mib(peak)} at most, ${mib(following)} following; ${mib(peakStuck)} with ${readers} that do not read (${seconds.toFixed(1)} s)`,
    );
    expect(new Set(all.map((one) => JSON.stringify(one))).size).toBe(1);
    expect(all[0]?.size).toBeGreaterThan(3 * MiB);
    expect(peak - before).toBeLessThan(200 * MiB);
    expect(peakStuck - before).toBeLessThan(200 * MiB);
  },
  120_000,
);

/** Bytes of a line: its number from 1, with zeros before it. */
const width = 1_024;
const total = 2 ** 30 / width;
const numbered = (line: number): string => String(line).padStart(width - 1, '0');

describe.each([
  { which: 'of which the default limit keeps a part', limit: '', atMost: 72 * MiB },
  // But for what came faster than a busy daemon reads it.
  { which: 'that is kept whole', limit: 'log_limit: 2GiB', atMost: 1_100 * MiB },
])('a log of 1 GiB $which', ({ limit, atMost }) => {
  const isWhole = limit !== '';
  test.skipIf(lacks('bubblewrap', 'chromium'))(
    'its end, any part of it, and its page are there, and memory is bounded',
    async () => {
      await buildDashboard();
      await using browser = await openBrowser();
      await using here = await onejob({ config: `pools: { default: { agents: 1, runtime: process } }\n${limit}\n` });
      const daemon = await here.up();
      const ask = await overTcp(here);
      const before = memoryOf(daemon);
      forgetPeak(daemon);
      const start = performance.now();
      const script = `seq -f '%0${width - 1}.0f' 1 ${total}; echo FINAL ERROR; exit 3`;
      const { id } = await here.api.submit({ command: ['sh', '-c', script] });
      expect((await here.api.settled(id)).result).toEqual({ kind: 'code', code: 3 });
      const written = performance.now();
      const peak = peakOf(daemon);
      const files = readdirSync(join(here.stateDir, 'logs')).map((file) => statSync(join(here.stateDir, 'logs', file)).size);
      expect(files.reduce((sum, each) => sum + each, 0)).toBeLessThan(atMost);

      forgetPeak(daemon);
      const end = await here.cli(['logs', '-n', '3', id]).ended;
      expect(end.stdout).toBe(`${numbered(total - 1)}\n${numbered(total)}\nFINAL ERROR\n`);
      // From any byte on: what is there, or how much is missing.
      for (const line of isWhole ? [total / 2] : [1, 1_000, total / 2, total - 1_000]) {
        const answer = await ask(`job=${id}&stdout=${(line - 1) * width}`);
        let at = (line - 1) * width;
        for await (const piece of readFrames(answer)) {
          if ('gap' in piece && piece.gap !== undefined) {
            expect(piece.gap.after.stdout).toBe(at);
            at += piece.gap.missing.stdout;
          } else if (piece.stream === 'stdout') {
            const text = Buffer.from(piece.bytes).toString();
            const whole = `${numbered(Math.floor(at / width) + 1)}\n`.slice(at % width);
            expect(whole.slice(0, text.length)).toBe(text.slice(0, whole.length));
            break;
          }
        }
        answer.destroy();
      }

      const said = await here.cli(['dashboard', '--json']).ended;
      await using view = await visit(browser, (JSON.parse(said.stdout || said.stderr) as { url: string }).url);
      const { page, faults } = view;
      await page.locator('.link-live').waitFor({ state: 'attached' });
      await page.goto(`${page.url()}#/jobs/${id}`);
      const log = page.getByRole('region', { name: 'Lines of output' });
      // The last lines of what is kept whole are found by reading all of it, twice.
      await log.getByText('FINAL ERROR').waitFor({ timeout: 240_000 });
      await log.getByText(numbered(total)).waitFor({ state: 'attached' });
      // Of what is kept whole that takes as long as its reading.
      if (!isWhole) {
        await page.getByRole('searchbox').fill(numbered(1_234).slice(-12));
        await page.keyboard.press('Enter');
        await page.getByText('1 of 1').waitFor({ timeout: 120_000 });
        await log.locator('.line.current', { hasText: numbered(1_234) }).waitFor();
      }
      expect(faults).toEqual([]);
      const mib = (bytes: number) => `${Math.round(bytes / MiB)} MiB`;
      const seconds = (from: number, to: number) => `${((to - from) / 1_000).toFixed(1)} s`;
      console.log(
        `1 GiB: ${seconds(start, written)}, read in ${seconds(written, performance.now())}; ${mib(before)} before, ${mib(peak)} at most while it came, ${mib(peakOf(daemon))} while it was read`,
      );
      expect(peak - before).toBeLessThan(192 * MiB);
      expect(peakOf(daemon) - before).toBeLessThan(192 * MiB);
    },
    600_000,
  );
});
