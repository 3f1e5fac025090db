/** The dashboard in a real browser, against a stand-in for the daemon, which can show what a real one rarely does. */
import { once } from 'node:events';
import type { ServerResponse } from 'node:http';
import type { Browser, Locator, Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { frame } from '../../src/contract/frames.ts';
import { lacks } from '../../test/support/require.ts';
import { buildDashboard, openBrowser, type Visit, visit } from './browser.ts';
import { linkTo, startStandin } from './standin.ts';
import { busySlot, ended, job, pool, slot, uuid, workingDay } from './world.ts';

let browser: Browser;

const phone = { viewport: { width: 360, height: 740 } };

/** Opens a page with a login, once it is live. */
async function open(url: string, options: Parameters<typeof visit>[2] = {}): Promise<Visit> {
  const opened = await visit(browser, linkTo(url), options);
  await opened.page.locator('.link-live').waitFor({ state: 'attached' });
  if (opened.page.url() !== `${url}/`) await opened.page.goto(url);
  await opened.page.locator('.link-live').waitFor({ state: 'attached' });
  return opened;
}

/** Whether all of it is in the window, and in what scrolls around it. */
const isSeen = (what: Locator) =>
  what.evaluate((node) => {
    const [own, around] = [node, node.closest('.log')].map((one) => one?.getBoundingClientRect());
    return own !== undefined && around !== undefined && own.top >= around.top && own.bottom <= Math.min(around.bottom, innerHeight);
  });

const overflow = (page: Page) => page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);

describe.skipIf(lacks('chromium'))('dashboard', () => {
  beforeAll(async () => {
    await buildDashboard();
    browser = await openBrowser();
  });
  afterAll(() => browser?.close());

  test('says which card is bad and why each job waits', async () => {
    await using standin = await startStandin(workingDay());
    await using view = await open(standin.url);
    const { page, faults } = view;
    const card = page.getByRole('listitem', { name: 'GPU 3, quarantined' });
    await expect.poll(() => card.innerText()).toContain('memory stays in use after the agent ended');
    await expect.poll(() => card.innerText()).toContain('proof: dirty');
    expect(await page.locator('.concerns').innerText()).toContain('GPU 3 is quarantined');
    expect(await page.locator('.concerns').innerText()).toContain('is paused by hand. Type "onejob resume release".');
    // One of mig and one of azure, but not that of the paused pool.
    expect(await page.locator('.tile', { hasText: 'Ready for a job' }).innerText()).toMatch(/2\s+at once/);
    const queueOf = (name: string) => page.locator('.queue', { has: page.getByRole('link', { name }) });
    const waiting = await queueOf('train-resnet --epochs 90').innerText();
    expect(waiting).toContain('all 4 agents of pool gpu are busy; 1 more cannot be used: memory stays in use');
    expect(waiting).toContain('next, within 9 min');
    expect(await queueOf('./release.sh').innerText()).toContain('the pool is paused by hand');
    expect(await queueOf('nightly-cuda').innerText()).toContain('the pool waits for image "onejob/azure:4.261.0" on docker');
    // The cause of one fault is there once, with what needs attention.
    expect((await page.locator('main').innerText()).split('was not found (404)')).toHaveLength(2);
    expect(await page.locator('.concerns').innerText()).toContain('was not found (404)');
    expect([await page.title(), await page.locator('.brand').innerText()]).toEqual(['gpuci · Now', 'gpuci']);
    await page.goto(`${standin.url}/#/history`);
    await expect.poll(() => page.title()).toBe('gpuci · History');
    await expect.poll(() => page.locator('.bars').first().locator('li').first().innerText()).toMatch(/GPU 3\s+stands out/);
    expect(faults).toEqual([]);
  });

  test('a host that has done nothing yet says the next step, and whose it is', async () => {
    const state = workingDay();
    state.jobs = [];
    state.status.config = null;
    await using standin = await startStandin(state);
    await using view = await open(standin.url);
    const running = view.page.getByRole('region', { name: 'Running' });
    await expect.poll(() => running.innerText()).toMatch(/onejob run -- echo hello\s+Connect a CI service: onejob init/);
    expect([await view.page.title(), await view.page.locator('.brand').innerText()]).toEqual(['gpuci · Now', 'gpuci']);
  });

  test('shows events as they come, and draws nothing else again', async () => {
    const state = workingDay();
    state.status.pools.push(
      pool(
        'many',
        Array.from({ length: 1_000 }, (_, n) => slot(`many/${n + 1}`)),
      ),
    );
    await using standin = await startStandin(state);
    await using view = await open(standin.url);
    const { page, faults } = view;
    await page.evaluate(`
      window.touched = 0;
      new MutationObserver((all) => { window.touched += all.filter(({ target }) => !(target.parentElement ?? target).closest('time')).length; })
        .observe(document.querySelector('.cells'), { subtree: true, childList: true, attributes: true, characterData: true });`);
    standin.emit('slot', { pool: 'many', key: 'many/500', slot: busySlot('many/500', 'aa00aa00aa02', 0) });
    await page.getByRole('button', { name: 'many/500: busy' }).waitFor();
    expect(await page.evaluate('window.touched')).toBeLessThan(8);
    const next = job('aa00aa00aa02', { name: 'integration tests', state: 'running', startedAt: Date.now() });
    standin.setJob(next);
    await page
      .locator('section', { hasText: /^Running/ })
      .locator('.job', { hasText: 'integration tests' })
      .waitFor();
    standin.setJob({ ...next, state: 'done', endedAt: Date.now(), verdict: { kind: 'code', why: 'exit code 1', evidence: [] } });
    await page
      .locator('section', { hasText: /^Just ended/ })
      .locator('.job', { hasText: 'your code' })
      .waitFor();
    expect(faults).toEqual([]);
  });

  test('keeps up with many jobs', async () => {
    await using standin = await startStandin(workingDay());
    await using view = await open(standin.url);
    for (let n = 0; n < 400; n += 1) {
      standin.emit('job', job(`n${n}`, { state: 'running', startedAt: Date.now() }));
      standin.emit('job', ended(`n${n}`, 'passed', 'exit code 0', { name: `job ${n}`, endedAt: Date.now() }));
    }
    await view.page.locator('.job', { hasText: 'job 399' }).waitFor();
    expect(view.faults).toEqual([]);
  });

  test('a restart of the daemon shows nothing stale as current, and reads everything again', async () => {
    await using standin = await startStandin(workingDay());
    await using view = await open(standin.url);
    const { page } = view;
    await standin.down();
    await page.getByText(/Connection lost since \d\d:\d\d:\d\d/).waitFor();
    expect(await page.locator('main').getAttribute('inert')).not.toBe(null);
    expect(await page.locator('main').getAttribute('class')).toBe('stale');
    expect(await page.locator('.link-state').innerText()).toBe('not current');
    // Ages stand still: nobody knows whether they still hold.
    const age = page.locator('.slot-since time').first();
    const before = await age.innerText();
    await page.getByText(/Next try in|Trying now/).waitFor();
    expect(await age.innerText()).toBe(before);
    standin.state.devices = standin.state.devices.map((one) =>
      one.uuid === uuid(3) ? { ...one, state: 'leased', why: null, hint: null, retryAt: null } : one,
    );
    await standin.up();
    await page.locator('.link-live').waitFor({ state: 'attached' });
    expect(await page.locator('main').getAttribute('inert')).toBe(null);
    await page.getByRole('listitem', { name: 'GPU 3, in use' }).waitFor();
    expect(await page.getByText('Connection lost').count()).toBe(0);
  });

  test('a login link works once and leaves no code behind; without a login it says how to get one', async () => {
    await using standin = await startStandin(workingDay());
    await using view = await visit(browser, standin.url);
    const { page } = view;
    await page.getByText('onejob dashboard', { exact: true }).waitFor();
    await page.goto(`${standin.url}/login#bad`);
    await page.getByText('the code was used, or is too old').waitFor();
    expect(page.url()).toBe(`${standin.url}/login`);
    // Another page first: a new fragment alone loads nothing.
    await page.goto('about:blank');
    await page.goto(`${standin.url}/login#good`);
    await page.locator('.link-live').waitFor({ state: 'attached' });
    expect(page.url()).toBe(`${standin.url}/`);
    standin.role = null;
    await standin.down();
    await standin.up();
    await page.getByText('This browser is not logged in, or no longer.').waitFor();
    standin.role = 'read';
    await page.reload();
    await page.locator('.link-live').waitFor({ state: 'attached' });
    await page.keyboard.press('?');
    await page.getByRole('button', { name: 'Log out' }).click();
    await page.getByText('This browser is not logged in, or no longer.').waitFor();
    expect(await page.evaluate('localStorage.length')).toBe(0);
  });

  test('operators change things after a question; others see no way to', async () => {
    await using standin = await startStandin(workingDay());
    await using view = await open(standin.url);
    const { page, faults } = view;
    const card = page.getByRole('listitem', { name: /^GPU 0,/ });
    await card.getByLabel('Change GPU 0').click();
    await card.getByRole('button', { name: 'Quarantine' }).click();
    const dialog = page.getByRole('dialog', { name: 'Put GPU 0 in quarantine?' });
    expect(await dialog.innerText()).toContain('The job that runs on it is not touched');
    await page.keyboard.press('Escape');
    await dialog.waitFor({ state: 'detached' });
    expect(standin.posted).toEqual([]);
    await card.getByLabel('Change GPU 0').click();
    await card.getByRole('button', { name: 'Quarantine' }).click();
    await dialog.getByLabel('Why').fill('smells burnt');
    await dialog.getByRole('button', { name: 'Quarantine' }).click();
    await page.getByRole('listitem', { name: 'GPU 0, quarantined' }).waitFor();
    expect(standin.posted).toEqual([{ path: `/v1/devices/${uuid(0)}/quarantine`, body: { reason: 'smells burnt' } }]);
    await page.getByLabel('Change pool build').click();
    await page.getByRole('button', { name: 'Pause' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Pause' }).click();
    await page.getByText('It is paused by hand.').first().waitFor();
    await page.goto(`${standin.url}/#/jobs/aa00aa00aa02`);
    await page.getByRole('button', { name: 'Cancel the job' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Cancel the job' }).click();
    await page.getByText('It was cancelled: somebody cancelled it.').waitFor();
    // A refusal is shown in the dialog, which stays.
    standin.state.jobs.push(job('aa00aa00bb01'));
    await page.goto(`${standin.url}/#/jobs/aa00aa00bb01`);
    await page.getByRole('button', { name: 'Cancel the job' }).click();
    standin.state.jobs = standin.state.jobs.filter(({ id }) => id !== 'aa00aa00bb01');
    await page.getByRole('dialog').getByRole('button', { name: 'Cancel the job' }).click();
    await page.getByRole('dialog').getByText('There is no job aa00aa00bb01.').waitFor();
    expect(faults).toEqual([]);

    standin.role = 'read';
    await using guest = await open(standin.url);
    await guest.page.getByText('read-only').waitFor();
    expect(await guest.page.locator('.menu').count()).toBe(0);
  });

  test('output has colours, is searched, and jumps to its first error', async () => {
    await using standin = await startStandin(workingDay());
    const lines = Array.from({ length: 12_000 }, (_, n) =>
      n === 5_000 ? '\u001b[31merror:\u001b[0m it broke <b>here</b>' : `\u001b[32m[${n}]\u001b[0m compiles`,
    );
    standin.logs.set('e1a1b2c3d4e5', `${lines.join('\n')}\n`);
    await using view = await open(`${standin.url}/#/jobs/e1a1b2c3d4e5`);
    const { page, faults } = view;
    const log = page.getByRole('region', { name: 'Lines of output' });
    await log.getByText('[11999] compiles').waitFor();
    expect(await log.locator('.fg-c2').last().innerText()).toBe('[11999]');
    expect(await page.getByRole('region', { name: 'How it ended' }).innerText()).toContain(
      'It failed by its own code: its command ended with exit code 2.',
    );
    await page.keyboard.press('e');
    const found = log.getByText('it broke <b>here</b>');
    await found.waitFor();
    expect(
      await found.evaluate((node) => {
        const [line, log] = [node, node.closest('.log')].map((one) => one?.getBoundingClientRect());
        return line !== undefined && log !== undefined && line.top > log.top && line.bottom < log.bottom;
      }),
    ).toBe(true);
    expect(await log.locator('.line', { hasText: 'it broke' }).getAttribute('data-n')).toBe('5001');
    await page.keyboard.press('l');
    await page.keyboard.type('[77');
    await page.keyboard.press('Enter');
    await page.getByText('1 of 111').waitFor();
    await log.locator('mark').first().waitFor();
    await page.getByRole('button', { name: 'Next match' }).click();
    await page.getByText('2 of 111').waitFor();
    await page.getByRole('button', { name: 'Start', exact: true }).click();
    await log.getByText('[0] compiles').waitFor();
    expect(faults).toEqual([]);
  });

  test('output that comes is followed, and left alone while somebody reads', async () => {
    await using standin = await startStandin(workingDay());
    let response: ServerResponse | null = null;
    standin.logs.set('9a41c07be2d1', async (answer) => {
      response = answer;
      answer.write(frame('stdout', 'begins\n'));
    });
    const say = (text: string) => response?.write(frame('stdout', text));
    await using view = await open(`${standin.url}/#/jobs/9a41c07be2d1`);
    const { page } = view;
    const log = page.getByRole('region', { name: 'Lines of output' });
    await log.getByText('begins').waitFor();
    await page.getByText('— live').waitFor();
    expect(await page.getByRole('region', { name: 'Time line' }).innerText()).toMatch(/Ended\s+–\s+44m \d\ds so far/);
    say(Array.from({ length: 300 }, (_, n) => `step ${n}\n`).join(''));
    const distance = () => log.evaluate((node) => node.scrollHeight - node.scrollTop - node.clientHeight);
    await log.getByText('step 299').waitFor();
    await expect.poll(distance).toBeLessThan(4);
    await log.evaluate((node) => node.scrollTo({ top: 900 }));
    await page.getByRole('button', { name: 'Follow', pressed: false }).waitFor();
    const top = () => log.evaluate((node) => node.scrollTop);
    say('later\n');
    await log.getByText('later').waitFor({ state: 'attached' });
    expect(await top()).toBe(900);
    await page.keyboard.press('f');
    await expect.poll(distance).toBeLessThan(4);
  });

  test('the end of an output is seen at the first look, without scrolling the page', async () => {
    const state = workingDay();
    const held = state.jobs.find(({ id }) => id === 'e1a1b2c3d4e5');
    if (held === undefined) throw new Error('no held job');
    Object.assign(held, { command: ['sh', '-c', `cmake --build . ${'--target unit_tests '.repeat(40)}`] });
    await using standin = await startStandin(state);
    const lines = Array.from({ length: 400 }, (_, n) => `[${n}] compiles unit_${n}.cu\n`).join('');
    const jobs = ['e1a1b2c3d4e5', 'e2a1b2c3d4e5', '9a41c07be2d1'];
    for (const id of jobs) {
      standin.logs.set(id, async (answer) => {
        answer.write(frame('stdout', `${lines}the very last line\n`));
        if (id.startsWith('e')) answer.end(frame('end'));
      });
    }
    const sizes = [
      { width: 1440, height: 900 },
      { width: 1366, height: 768 },
      { width: 1280, height: 800 },
    ];
    for (const viewport of sizes) {
      for (const id of jobs) {
        await using view = await open(`${standin.url}/#/jobs/${id}`, { viewport });
        const { page, faults } = view;
        const last = page.getByText('the very last line');
        await expect.poll(() => isSeen(last), { message: `${id} at ${viewport.width}` }).toBe(true);
        const log = page.getByRole('region', { name: 'Lines of output' });
        expect(await log.evaluate((node) => node.clientHeight), `${id} at ${viewport.width}`).toBeGreaterThan(180);
        await page.keyboard.press('s');
        await expect.poll(() => log.evaluate((node) => node.scrollTop)).toBe(0);
        await page.getByRole('button', { name: id.startsWith('e') ? 'End' : 'Follow', exact: true }).click();
        await expect.poll(() => isSeen(last)).toBe(true);
        expect(await page.evaluate('scrollY')).toBe(0);
        expect(faults).toEqual([]);
      }
    }
    // Where all that is above it fills the window, the keys bring it into view.
    await using view = await open(`${standin.url}/#/jobs/e1a1b2c3d4e5`, phone);
    await view.page.getByText('the very last line').waitFor();
    await view.page.keyboard.press('f');
    await expect.poll(() => isSeen(view.page.getByText('the very last line'))).toBe(true);
  });

  test('a huge log costs the tab little memory, also while it is searched', async () => {
    await using standin = await startStandin(workingDay());
    const megabytes = 96;
    const chunk = Buffer.from(`${'some output of a job that prints very much '.repeat(3)}\n`.repeat(8_000)).subarray(0, 1_000_000);
    standin.logs.set('e1a1b2c3d4e5', async (answer, query) => {
      if (query.has('tail')) {
        answer.write(
          frame(
            'gap',
            JSON.stringify({ missing: { stdout: megabytes * 1e6, stderr: 0 }, after: { stdout: 0, stderr: 0 }, asked: true }),
          ),
        );
        answer.end(Buffer.concat([frame('stdout', '\nthe last line\n'), frame('end')]));
        return;
      }
      const gone = new AbortController();
      answer.once('close', () => gone.abort());
      for (let n = 0; n < megabytes && !answer.destroyed; n += 1) {
        if (!answer.write(frame('stdout', chunk))) await once(answer, 'drain', { signal: gone.signal }).catch(() => {});
      }
      answer.end(Buffer.concat([frame('stdout', '\nthe last line\n'), frame('end')]));
    });
    await using view = await open(`${standin.url}/#/jobs/e1a1b2c3d4e5`);
    const { page, faults } = view;
    await page.getByText('the last line').waitFor();
    await page.getByRole('searchbox').fill('last line');
    await page.keyboard.press('Enter');
    await page.getByText('1 of 1').waitFor();
    const client = await page.context().newCDPSession(page);
    await client.send('HeapProfiler.collectGarbage');
    const { usedSize } = await client.send('Runtime.getHeapUsage');
    expect(usedSize).toBeLessThan(40e6);
    expect(faults).toEqual([]);
  });

  test('hostile names and output do nothing, and break no page', async () => {
    const state = workingDay();
    const evil = `<img src=x onerror="window.pwned=1">\u202e\u001b]0;x\u0007${'W'.repeat(4_000)}`;
    const about = {
      title: evil,
      definition: null,
      build: null,
      repository: evil,
      branch: evil,
      reason: evil,
      link: 'javascript:window.pwned=1',
      demands: [evil],
    };
    state.jobs.push(job('ee00ee00ee01', { name: evil, user: evil, pool: evil, reason: evil, command: [evil] }));
    state.jobs.push(job('ee/../00?x#y', { service: evil, pool: '', about, state: 'running', agent: evil, startedAt: Date.now() }));
    state.jobs.push(
      ended('ee00ee00ee03', 'infrastructure', evil, {
        name: evil,
        verdict: { kind: 'infrastructure', why: evil, evidence: [evil] },
      }),
    );
    state.status.pools.push(
      pool(evil, [busySlot(`${evil}/1`, 'ee/../00?x#y', 0, { note: evil, held: evil })], { image: evil, paused: [evil] }),
    );
    state.status.problems = [evil];
    state.devices = state.devices.map((one) => ({ ...one, model: evil, why: evil, hint: evil, state: 'quarantined' as const }));
    await using standin = await startStandin(state);
    standin.findings.push({ level: 'error', subject: evil, message: evil, hint: evil });
    standin.logs.set('ee00ee00ee03', `${evil}\n<script>window.pwned=1</script>\n\u001b[2J\u001b[31m${evil}\n`);
    for (const options of [phone, {}]) {
      await using view = await open(standin.url, options);
      const { page, faults } = view;
      const pages = [
        '',
        '#/jobs/ee00ee00ee01',
        '#/jobs/ee00ee00ee03',
        `#/jobs/${encodeURIComponent('ee/../00?x#y')}`,
        '#/history',
        '#/health',
      ];
      for (const path of pages) {
        await page.goto(`${standin.url}/${path}`);
        await page.locator('h1, .now').first().waitFor({ state: 'attached' });
        if (path.endsWith('ee03')) await page.locator('.line').first().waitFor();
        expect(await overflow(page), path).toBe(0);
        expect(await page.locator('a[href^="javascript:"]').count()).toBe(0);
        expect(await page.evaluate('window.pwned'), path).toBe(undefined);
      }
      expect(faults).toEqual([]);
    }
  });

  test('every page fits a phone, and can be read in light and dark', async () => {
    await using standin = await startStandin(workingDay());
    standin.logs.set('e2a1b2c3d4e5', '\u001b[31mred\u001b[32mgreen\u001b[33myellow\u001b[34mblue\u001b[90mgrey\u001b[0m plain\n');
    for (const colorScheme of ['light', 'dark'] as const) {
      await using view = await open(standin.url, { ...phone, colorScheme });
      const { page, faults } = view;
      for (const path of ['', '#/jobs/e2a1b2c3d4e5', '#/jobs/aa00aa00aa02', '#/history', '#/health']) {
        await page.goto(`${standin.url}/${path}`);
        await page.locator('h1, .now').first().waitFor({ state: 'attached' });
        expect(await overflow(page), path).toBe(0);
        expect(await faintTexts(page), `${colorScheme} ${path}`).toEqual([]);
        expect(await unnamed(page), path).toEqual([]);
        if (path !== '#/history') continue;
        const list = page.getByRole('region', { name: 'Jobs', exact: true }).last();
        await list.getByText('unit tests (gcc 14)').waitFor();
        expect(await list.evaluate((node) => node.scrollWidth - node.clientWidth)).toBe(0);
        const outcome = list.getByText('its command ended with exit code 2');
        for (const part of [list.getByText('lint'), outcome, list.locator('.nowrap time').first()]) {
          const box = await part.boundingBox();
          expect(box !== null && box.x >= 0 && box.x + box.width <= phone.viewport.width, String(part)).toBe(true);
        }
      }
      expect(faults).toEqual([]);
    }
  });

  test('the names of pages are whole words on the narrowest phone, also next to the mark of who may only look', async () => {
    await using standin = await startStandin(workingDay());
    standin.role = 'read';
    await using view = await open(standin.url, { viewport: { width: 320, height: 640 } });
    const { page } = view;
    await page.getByText('read-only').waitFor();
    const lines = await page.locator('.bar nav a').evaluateAll((links) =>
      links.map((link) => {
        const text = document.createRange();
        text.selectNodeContents(link);
        return text.getClientRects().length;
      }),
    );
    expect(lines).toEqual([1, 1, 1]);
    expect(await overflow(page)).toBe(0);
    const help = await page.getByRole('button', { name: 'Help and shortcuts' }).boundingBox();
    expect(help !== null && help.x + help.width <= 320).toBe(true);
  });

  test('the keyboard reaches everything', async () => {
    await using standin = await startStandin(workingDay());
    await using view = await open(standin.url);
    const { page } = view;
    await page.keyboard.press('Tab');
    expect(await page.evaluate('document.activeElement.textContent')).toBe('Skip to the content');
    await page.keyboard.press('Enter');
    expect(await page.evaluate('document.activeElement.tagName')).toBe('MAIN');
    await page.keyboard.press('2');
    await page.getByRole('heading', { name: 'History', level: 1 }).waitFor();
    await page.keyboard.press('?');
    const help = page.getByRole('dialog', { name: 'Keyboard' });
    expect(await help.innerText()).toContain('Find a job');
    expect(await help.getByRole('link', { name: 'Documentation' }).getAttribute('href')).toBe('/docs/');
    await help.getByLabel('Use these keys').uncheck();
    await page.keyboard.press('Escape');
    await page.keyboard.press('3');
    expect(page.url()).toContain('#/history');
    await page.evaluate("localStorage.setItem('onejob-keys', 'on')");
    await page.keyboard.press('/');
    await page.keyboard.type('coverage');
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { name: 'coverage', level: 1 }).waitFor();
    await page.keyboard.press('t');
    expect(await page.evaluate('document.documentElement.dataset.theme')).toBe('light');
  });

  test('an array is one row, a deep queue is a line for each job with one reason, and what runs is above what waits', async () => {
    const state = workingDay();
    const place = (index: number) => ({ name: 'sweep', array: { id: 'abcabcabcabc', index } });
    for (let n = 0; n < 200; n += 1) {
      const id = `ab${String(n).padStart(10, '0')}`;
      if (n < 14) state.jobs.push(ended(id, n < 12 ? 'passed' : 'code', 'exit code', place(n)));
      else if (n < 16) state.jobs.push(job(id, { ...place(n), state: 'running', startedAt: Date.now() }));
      else state.jobs.push(job(id, { ...place(n), ahead: n }));
    }
    for (let n = 0; n < 30; n += 1) state.jobs.push(job(`cd${String(n).padStart(10, '0')}`, { name: `nightly ${n}` }));
    await using standin = await startStandin(state);
    await using view = await open(standin.url);
    const { page, faults } = view;
    const [running, waiting] = ['Running', 'Waiting'].map((name) => page.getByRole('region', { name: new RegExp(`^${name}`) }));
    if (running === undefined || waiting === undefined) throw new Error('no lists');
    await running.getByText('12 passed, 2 failed, 2 running, 184 wait').waitFor();
    await running.getByText('sweep [0-199]').waitFor();
    await waiting.getByText('sweep [16-199]').waitFor();
    await waiting.getByText('184 wait').waitFor();
    const [above, below] = [await running.boundingBox(), await waiting.boundingBox()];
    expect(above !== null && below !== null && above.y + above.height <= below.y).toBe(true);
    // The reason is said once for all that wait for it.
    expect(await waiting.getByText('all 4 agents of pool build are busy').count()).toBe(1);
    const line = waiting.locator('.job', { hasText: 'nightly 3' });
    expect((await line.boundingBox())?.height).toBeLessThan(40);
    await waiting.getByText('sweep [16-199]').click();
    await waiting.getByRole('link', { name: 'sweep [20]' }).click();
    await page.getByRole('heading', { name: 'sweep [20]', level: 1 }).waitFor();
    expect(faults).toEqual([]);
  });

  test('a job that ended long ago is found by what people remember of it, and nothing opens a page of no job', async () => {
    const state = workingDay();
    const old = { name: 'build of tuesday', user: 'maria', command: ['cmake', '--build', 'out'], endedAt: Date.now() - 86_400_000 };
    state.jobs.unshift(ended('0123456789ab', 'code', 'exit code 2', old));
    for (let n = 0; n < 20; n += 1) {
      const array = { id: 'abcabcabcabc', index: n };
      state.jobs.push(job(`ab${String(n).padStart(10, '0')}`, { name: 'sweep', array }));
    }
    await using standin = await startStandin(state);
    await using view = await open(standin.url);
    const { page, faults } = view;
    for (const text of ['TUESDAY', 'maria', 'cmake --build', '0123456789ab']) {
      await page.goto(`${standin.url}/#/`);
      await page.keyboard.press('/');
      await page.keyboard.type(text);
      await page.keyboard.press('Enter');
      await page.getByRole('heading', { name: 'build of tuesday', level: 1 }).waitFor();
    }
    const dialog = page.getByRole('dialog', { name: 'Find a job' });
    await page.keyboard.press('/');
    await page.keyboard.type('sweep');
    await dialog.getByText('sweep [11]').waitFor();
    expect((await dialog.locator('.found bdi:first-child').allInnerTexts()).filter((text) => text.startsWith('sweep'))).toEqual(
      Array.from({ length: 12 }, (_, n) => `sweep [${n}]`),
    );
    // One Escape closes it, whatever was typed.
    await page.keyboard.press('Escape');
    await dialog.waitFor({ state: 'detached' });
    await page.keyboard.press('/');
    await page.keyboard.type('no such job');
    await page.keyboard.press('Enter');
    await dialog.getByText('No job fits.').waitFor();
    await page.keyboard.press('Enter');
    expect(page.url()).toContain('#/jobs/0123456789ab');
    await page.keyboard.press('Escape');
    await page.goto(`${standin.url}/#/history`);
    await page.getByRole('searchbox', { name: 'Job' }).fill('tuesday');
    await page.keyboard.press('Enter');
    await page.getByRole('link', { name: 'build of tuesday' }).waitFor();
    expect(page.url()).toContain('text=tuesday');
    expect(faults).toEqual([]);
  });

  test('files of a failed job that are held say what to type, and operators end the hold', async () => {
    await using standin = await startStandin(workingDay());
    await using view = await open(standin.url);
    const { page, faults } = view;
    await page.getByRole('region', { name: 'Pool build' }).getByText('failed and held').waitFor();
    const failed = standin.state.jobs.find(({ id }) => id === 'e1a1b2c3d4e5');
    if (failed === undefined) throw new Error('no failed job');
    standin.setJob({ ...failed, endedAt: Date.now() });
    const item = page.getByRole('listitem').filter({ has: page.getByRole('link', { name: 'unit tests (gcc 14)' }) });
    await item.getByText('files held').waitFor();
    expect(await item.innerText()).toMatch(/2[56]m \d\ds\s+left/);
    await page.getByRole('link', { name: 'unit tests (gcc 14)' }).click();
    const files = page.getByRole('region', { name: 'Its files' });
    expect(await files.innerText()).toMatch(/held for 2[56]m.*onejob shell e1a1b2c3d4e5/s);
    await files.getByRole('button', { name: 'End the hold' }).click();
    const dialog = page.getByRole('dialog', { name: 'End the hold of unit tests (gcc 14)?' });
    await dialog.getByText('Its files are removed now').waitFor();
    expect(standin.posted).toEqual([]);
    await dialog.getByRole('button', { name: 'Remove the files' }).click();
    await files.waitFor({ state: 'detached' });
    expect(standin.posted.map(({ path }) => path)).toEqual(['/v1/jobs/e1a1b2c3d4e5/unhold']);
    // It ended once: what changed later was not its end.
    await page.goto(`${standin.url}/#/health`);
    await page.getByText('ended: failed, your code').waitFor();
    expect(await page.getByText('ended: failed, your code').count()).toBe(1);
    expect(faults).toEqual([]);
  });

  test('who may only look sees that files are held, and cannot end that', async () => {
    await using standin = await startStandin(workingDay());
    standin.role = 'read';
    await using view = await open(`${standin.url}/#/jobs/e1a1b2c3d4e5`);
    await view.page.getByRole('region', { name: 'Its files' }).waitFor();
    expect(await view.page.getByRole('button', { name: 'End the hold' }).count()).toBe(0);
  });

  test('a refusal leads to what the documentation says about its code', async () => {
    await using standin = await startStandin(workingDay());
    await using view = await open(`${standin.url}/#/jobs/never`);
    const link = view.page.getByRole('alert').getByRole('link', { name: 'E_JOB_UNKNOWN' });
    await link.waitFor();
    expect(await link.getAttribute('href')).toBe('/docs/errors.html#e_job_unknown');
  });

  test('history is counted by day, as a chart and as a table, for what is chosen', async () => {
    const state = workingDay();
    await using standin = await startStandin(state);
    await using view = await open(`${standin.url}/#/history`);
    const { page, faults } = view;
    const bars = (title: string) =>
      page.getByRole('region', { name: title, exact: true }).getByRole('listitem').first().innerText();
    await expect.poll(() => bars('Pools')).toMatch(/gpu\s+42 of 296 failed \(14%\)\s+14 infrastructure, 25 your code, 3 unknown/);
    expect(await bars('Devices')).toMatch(/12 of 47 infrastructure \(26%\)\s+17 failed in all, 3 your code, 2 unknown/);
    const days = page.getByRole('region', { name: /Jobs by day/ }).first();
    await expect.poll(() => days.locator('.u-legend').last().innerText()).toMatch(/^all days\s*run\s*wait$/);
    expect(await days.locator('.u-legend').first().innerText()).toMatch(/^all days\s*passed\s*808/);
    // All of it in one line.
    expect(
      await days
        .locator('.u-legend')
        .first()
        .evaluate(({ clientHeight }) => clientHeight),
    ).toBeLessThan(36);
    const [today] = state.history.day?.slice(-1) ?? [];
    await days.getByRole('img', { name: /^Ended jobs by day: \d+ infrastructure, \d+ unknown, \d+ your code/ }).waitFor();
    await days.getByText('As a table').click();
    const table = days.getByRole('region', { name: 'Jobs by day' });
    const cells = await table.getByRole('row').nth(1).getByRole('cell').allInnerTexts();
    expect(cells.slice(0, 2)).toEqual([String(today?.jobs), String(today?.infrastructure)]);
    expect(await table.getByRole('row').count()).toBe(9);
    const image = 'nvidia/cuda:12.6.2-devel-ubuntu24.04';
    await page.getByRole('combobox', { name: 'Image' }).selectOption(image);
    await page.getByText(`image ${image}`).waitFor();
    const asked = (start: string) =>
      Object.fromEntries(new URLSearchParams((standin.read.findLast((path) => path.startsWith(start)) ?? '').split('?')[1]));
    await page.getByRole('cell', { name: /train-resnet/ }).waitFor();
    expect(await page.getByRole('cell', { name: /lint/ }).count()).toBe(0);
    expect(asked('/v1/jobs?')).toMatchObject({ image });
    expect(asked('/v1/history?by=day')).toMatchObject({ image });
    // Finer sums are not kept: it says so instead of showing others.
    await page.getByRole('combobox', { name: 'Device' }).selectOption({ label: 'GPU 3' });
    await page.getByText('counted for one of image, device at a time').waitFor();
    await page.getByRole('combobox', { name: 'Device' }).selectOption('');
    await page.getByRole('combobox', { name: 'Time' }).selectOption('1d');
    await page.getByRole('heading', { name: /Jobs by hour/ }).waitFor();
    await page.getByRole('combobox', { name: 'Outcome' }).selectOption('failed');
    await page.getByRole('img', { name: /^Ended jobs by hour: \d+ infrastructure, \d+ unknown, \d+ your code\. The/ }).waitFor();
    state.history.device = [];
    await page.reload();
    await page.getByText('No job had a device.').waitFor();
    expect(faults).toEqual([]);
  });

  test('history is filtered and goes back page by page', async () => {
    const state = workingDay();
    for (let n = 0; n < 120; n += 1) {
      const kind = n % 3 === 0 ? 'infrastructure' : 'passed';
      state.jobs.push(
        ended(`b${n}`, kind, 'so it is', {
          name: `batch ${n}`,
          pool: 'gpu',
          devices: [uuid(n % 2)],
          endedAt: Date.now() - 1_000_000 - n * 1_000,
        }),
      );
    }
    await using standin = await startStandin(state);
    await using view = await open(`${standin.url}/#/history`);
    const { page, faults } = view;
    await page.getByRole('combobox', { name: 'Pool' }).selectOption('gpu');
    await page.getByRole('combobox', { name: 'Outcome' }).selectOption('infrastructure');
    await page.getByRole('combobox', { name: 'Device' }).selectOption({ label: 'GPU 0' });
    await page.getByRole('cell', { name: /batch 0\b/ }).waitFor();
    expect(await page.getByRole('cell', { name: /batch 3\b/ }).count()).toBe(0);
    const asked = standin.read.findLast((path) => path.startsWith('/v1/jobs?')) ?? '';
    expect(Object.fromEntries(new URLSearchParams(asked.split('?')[1]))).toMatchObject({
      all: 'true',
      pool: 'gpu',
      verdict: 'infrastructure',
      device: uuid(0),
      limit: '50',
    });
    await page.goto(`${standin.url}/#/history?pool=gpu`);
    await page.getByRole('link', { name: 'Older' }).click();
    await page.getByRole('cell', { name: /batch 60\b/ }).waitFor();
    await page.goBack();
    await page.getByRole('cell', { name: /batch 1\b/ }).waitFor();
    expect(faults).toEqual([]);
  });
});

/** Texts with less contrast than 4.5 to 1 (WCAG 2.2, 1.4.3). */
function faintTexts(page: Page): Promise<string[]> {
  return page.evaluate<string[]>(`(() => {
    const numbers = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
    const light = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)).reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
    const ground = (node) => {
      for (let one = node; one; one = one.parentElement) {
        const found = numbers(getComputedStyle(one).backgroundColor);
        if (found.length === 3) return found;
      }
      return [255, 255, 255];
    };
    return [...document.querySelectorAll('body *')].flatMap((node) => {
      const text = [...node.childNodes].filter((one) => one.nodeType === 3).map((one) => one.data).join('').trim();
      if (text === '' || node.closest('svg, option, .u-legend, .unseen, .toast') || node.getClientRects().length === 0) return [];
      const [a, b] = [light(numbers(getComputedStyle(node).color)), light(ground(node))].sort((x, y) => y - x);
      const contrast = (a + 0.05) / (b + 0.05);
      return contrast < 4.5 ? [contrast.toFixed(2) + ' ' + text.slice(0, 40)] : [];
    });
  })()`);
}

/** Controls without a name, and pages without their landmarks. */
function unnamed(page: Page): Promise<string[]> {
  return page.evaluate<string[]>(`(() => {
    const name = (node) => (node.getAttribute('aria-label') ?? node.labels?.[0]?.textContent ?? node.textContent ?? '').trim();
    const controls = [...document.querySelectorAll('a, button, input, select, summary, [tabindex="0"]')].filter((node) => name(node) === '');
    const marks = ['main', 'header.bar', 'nav[aria-label]', 'h1'].filter((mark) => document.querySelectorAll(mark).length !== 1 && !(mark === 'nav[aria-label]' && document.querySelector(mark)));
    return [...controls.map((node) => node.outerHTML.slice(0, 100)), ...marks];
  })()`);
}
