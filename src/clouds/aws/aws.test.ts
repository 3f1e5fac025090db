import { gunzipSync } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import { awsBench, owner } from '../../../test/kit/aws.ts';
import { schedulerRole, usualAmi } from '../../../test/standins/aws/standin.ts';
import { tagKeys } from '../../ports/cloud.ts';

const minute = 60_000;

describe('create', () => {
  it('makes one machine, and everything of it has the tags', async () => {
    const { aws, cloud, order, never } = awsBench();
    const wanted = order({ userData: '#cloud-config\nruncmd: [ true ]\n' });
    const made = await cloud.create(wanted, never);
    expect(made).toEqual({ id: expect.stringMatching(/^i-/), place: 'us-west-2', zone: 'us-west-2a' });
    const [machine] = aws.alive();
    expect(machine).toMatchObject({
      id: made.id,
      type: 'g4dn.xlarge',
      image: usualAmi,
      shutdown: 'terminate',
      token: wanted.token,
    });
    expect(machine?.metadata).toEqual({ tokens: 'required', hops: 1, tags: 'enabled' });
    expect(machine?.userData.toString()).toBe(wanted.userData);
    const tags = {
      [tagKeys.owner]: owner,
      [tagKeys.run]: wanted.run,
      [tagKeys.host]: 'burst',
      [tagKeys.born]: String(wanted.born),
      [tagKeys.expires]: String(wanted.expires),
    };
    expect(machine?.tags).toMatchObject(tags);
    expect([...aws.world.volumes.values()]).toEqual([
      expect.objectContaining({
        size: 100,
        kind: 'gp3',
        encrypted: true,
        goes: true,
        device: '/dev/sda1',
        tags: expect.objectContaining(tags),
      }),
    ]);
    expect([...aws.world.interfaces.values()]).toEqual([expect.objectContaining({ tags: expect.objectContaining(tags) })]);
  });

  it('as spot tags the request too', async () => {
    const { aws, cloud, order, never } = awsBench();
    await cloud.create(order({ offer: { type: 'g5.xlarge', spot: true, zone: 'us-west-2b' } }), never);
    expect([...aws.world.spots.values()]).toEqual([
      expect.objectContaining({ state: 'active', tags: expect.objectContaining({ [tagKeys.owner]: owner }) }),
    ]);
    expect(aws.alive()).toMatchObject([{ zone: 'us-west-2b' }]);
  });

  it('packs a long text for cloud-init, and refuses one that is too long even so', async () => {
    const { aws, cloud, order, error, never } = awsBench();
    const long = `#cloud-config\n${'# a line of a comment\n'.repeat(2000)}`;
    await cloud.create(order({ userData: long }), never);
    expect(gunzipSync(aws.alive()[0]?.userData ?? '').toString()).toBe(long);
    const noise = Array.from({ length: 30_000 }, () => String.fromCharCode(33 + Math.floor(Math.random() * 90))).join('');
    expect(await error(cloud.create(order({ userData: noise }), never))).toMatchObject({
      code: 'E_CLOUD_REQUEST',
      isAmbiguous: false,
    });
    expect(aws.alive()).toHaveLength(1);
  });
});

describe('the end of life', () => {
  it('is a schedule that was read back, and ends the machine', async () => {
    const { aws, cloud, order, never, clock, list } = awsBench();
    const wanted = order();
    const made = await cloud.create(wanted, never);
    const held = await cloud.setEnd(wanted, made, never);
    expect(held).toMatch(/^schedule onejob-[0-9a-f]{16}-[0-9a-f]{16}-\d+ in us-west-2$/);
    expect(await cloud.setEnd(wanted, made, never)).toBe(held);
    expect([...aws.world.schedules.values()]).toMatchObject([
      { given: { ActionAfterCompletion: 'DELETE', State: 'ENABLED', Target: { RoleArn: schedulerRole } } },
    ]);
    expect((await list()).things).toContainEqual({
      kind: 'schedule',
      id: held.split(' ')[1],
      place: 'us-west-2',
      run: wanted.run,
      host: null,
      born: wanted.born,
      expires: wanted.expires,
      state: 'running',
      offer: null,
    });
    clock.advance(60 * minute - 1);
    expect(aws.alive()).toMatchObject([{ state: 'running' }]);
    clock.advance(1);
    clock.advance(minute);
    expect(aws.leftovers()).toEqual([]);
  });
});

describe('list and destroy', () => {
  it('show and remove everything of one owner', async () => {
    const { aws, cloud, order, never, clock, list } = awsBench();
    const wanted = order({ offer: { type: 'g4dn.xlarge', spot: true, zone: null } });
    const made = await cloud.create(wanted, never);
    await cloud.setEnd(wanted, made, never);
    await cloud.create(order({ owner: 'other' }), never);
    const { things, unknown } = await list();
    expect(unknown).toEqual([]);
    expect(things.map(({ kind }) => kind).toSorted()).toEqual(['disk', 'interface', 'machine', 'schedule', 'spot-request']);
    expect(things.map(({ run }) => run)).toEqual(Array(5).fill(wanted.run));
    expect(things.find(({ kind }) => kind === 'machine')).toEqual({
      kind: 'machine',
      id: made.id,
      place: 'us-west-2',
      run: wanted.run,
      host: 'burst',
      born: wanted.born,
      expires: wanted.expires,
      state: 'starting',
      offer: { type: 'g4dn.xlarge', spot: true, zone: 'us-west-2a' },
    });
    await cloud.destroy({ kind: 'machine', id: made.id, place: 'us-west-2' }, never);
    expect((await list()).things.find(({ kind }) => kind === 'machine')?.state).toBe('ending');
    clock.advance(minute);
    const left = await list();
    expect(left.things.map(({ kind }) => kind)).toEqual(['schedule']);
    for (const thing of left.things) await cloud.destroy(thing, never);
    for (const thing of things) await cloud.destroy(thing, never);
    expect(await list()).toEqual({ things: [], unknown: [] });
    expect((await list('other')).things).toHaveLength(3);
    expect(aws.alive()).toHaveLength(1);
  });
});
