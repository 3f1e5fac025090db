/** A broker that was told to leave: what it ends, how long it waits for that, and who keeps it from it. */
import { describe, expect, it } from 'vitest';
import { phasesOf, say, slotOffer } from './testing.ts';
import { begin } from './testing-begin.ts';

const second = { ...slotOffer, slot: 'gpu/1', name: 'host-gpu-1' };

describe('a broker that leaves', () => {
  it('goes on when a manager comes that says what it wants', async () => {
    const { running, service, pass } = begin();
    say(running, [slotOffer]);
    service.add('job-1');
    await pass(1_000);
    const id = running.book.all()[0]?.shown.id ?? '';
    running.control.hand(id, { agent: 'a1', trusted: true, secrets: [] });
    running.control.leave();
    await pass(1_000);
    expect(phasesOf(running)).toEqual(['handed']);
    running.part();
    running.desired.join();
    say(running, [slotOffer, second]);
    service.add('job-2');
    await pass(2_000);
    expect(service.jobs.get('job-2')?.state).toBe('accepted');
    expect(running.desired.isLeaving).toBe(false);
    running.control.leave();
    await pass(1_000);
    expect(phasesOf(running)).toEqual(['handed', 'accepted']);
  });

  it('is not kept by the manager that was there before, whatever that still says', async () => {
    const { running, service, pass } = begin();
    say(running, [slotOffer]);
    await pass(1_000);
    running.control.leave();
    say(running, [slotOffer, second]);
    await pass(5_000);
    expect(running.book.all()).toEqual([]);
    expect([...service.agents.values()].every(({ state }) => state === 'gone')).toBe(true);
  });

  it('is not kept by who only looks, or came and went', async () => {
    const { running, pass } = begin();
    running.control.leave();
    const part = running.desired.join();
    await pass(1_000);
    expect(running.desired.isLeaving).toBe(true);
    part();
    say(running, [slotOffer]);
    await pass(1_000);
    expect([running.desired.isLeaving, running.book.all()]).toEqual([true, []]);
  });

  it('does not wait for a job of which the service does not say whether it is ours, longer than a minute', async () => {
    const { running, service, pass } = begin();
    say(running, [slotOffer]);
    service.add('job-1');
    service.fault = ({ path }) => (path.endsWith('/accept') ? 500 : null);
    await pass(3_000);
    running.control.leave();
    await pass(300_000);
    expect(phasesOf(running)).toEqual(['accepting']);
    running.part();
    await pass(50_000);
    expect(phasesOf(running)).toEqual(['accepting']);
    await pass(15_000);
    expect(running.book.all()).toEqual([]);
    expect(service.jobs.get('job-1')?.state).toBe('scheduled');
  });
});
