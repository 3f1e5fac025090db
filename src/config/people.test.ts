import { describe, expect, it } from 'vitest';
import { Folder } from '../../test/kit/config.ts';
import { type Accounts, parseGroups, parseUsers } from '../system/accounts.ts';
import { lookAtHost } from './host-look.ts';
import { People, type PeopleGroup, peopleOf } from './people.ts';

const pools =
  'pools: { gpu: { agents: 1 }, ci: { service: s }, root: { unsafe: { privileged: true } } }\nservices: { s: { type: buildkite, token: { file: /etc/t } } }\n';

/** What is wrong with `people`. */
async function check(people: string): Promise<string[]> {
  using folder = new Folder();
  const { errors, warnings } = await folder.load(`${pools}people: ${people}\n`);
  return [...errors, ...warnings].flatMap(({ key, level, message }) =>
    key?.startsWith('people') ? [`${level} ${key}: ${message}`] : [],
  );
}

describe('the config', () => {
  it('names groups with what they may do', async () => {
    using folder = new Folder();
    const { config } = await folder.load(
      `${pools}people: { half_life: 7d, groups: { staff: { role: operate }, lab: { role: submit, pools: [gpu], volumes: [/data/, "/scratch:rw"], cards_each: 2 } } }`,
    );
    expect(config.people).toMatchObject({
      halfLife: 7 * 86_400_000,
      groups: [
        { name: 'staff', role: 'operate' },
        {
          name: 'lab',
          role: 'submit',
          pools: ['gpu'],
          volumes: [
            { host: '/data', readOnly: true },
            { host: '/scratch', readOnly: false },
          ],
          logs: 'own',
          cards: null,
          cardsEach: 2,
          weight: 1,
        },
      ],
    });
    expect((await folder.load(pools)).config.people).toBe(null);
  });

  it('warns of folders in which a job could leave a program that is root for anyone who starts it', async () => {
    const people = 'people: { groups: { lab: { role: submit, pools: [gpu], volumes: ["/etc/jobs:rw", /etc/data] } } }';
    using folder = new Folder();
    const { warnings } = await folder.load(`${pools}${people}\n`, { look: lookAtHost });
    const found = warnings.filter(({ key }) => key === 'people.groups.lab.volumes').map(({ message }) => message);
    expect(found).toEqual([expect.stringMatching(/^a job can leave a program in \/etc\/jobs that runs as root/)]);
  });

  it.each([
    ['{ groups: { lab: { role: submit } } }', /error people\.groups\.lab: "pools" is missing: with the role submit/],
    [
      '{ groups: { lab: { role: submit, pools: [gpus] } } }',
      /error people\.groups\.lab\.pools: the own queue has no pool "gpus"; did you mean "gpu"/,
    ],
    ['{ groups: { lab: { role: submit, pools: [ci] } } }', /the own queue has no pool "ci"/],
    [
      '{ groups: { lab: { role: submit, pools: [root] } } }',
      /warning people\.groups\.lab\.pools: jobs of pool root have all rights over this host/,
    ],
    ['{ groups: { lab: { role: submit, pools: [gpu], volumes: ["/a/../b"] } } }', /must not contain "\.\."/],
    ['{ groups: { lab: { role: submit, pools: [gpu], volumes: [/] } } }', /is not a folder such as/],
    [
      '{ groups: { lab: { role: look, cards: 1, pools: [gpu] } } }',
      /warning people\.groups\.lab: the role look does not use pools and cards/,
    ],
    ['{ groups: { lab: { role: admin } } }', /error people\.groups\.lab\.role: /],
    ['{ groups: { lab: { rol: look } } }', /unknown key; did you mean "role"/],
    ['{ half_life: 1d }', /error people: has no "groups"/],
    ['{ groups: { "a:b": { role: look } } }', /is not the name of a group/],
  ])('%s is told', async (people, problem) => {
    expect(await check(people)).toEqual([expect.stringMatching(problem)]);
  });

  it('shows no job the sockets of people', async () => {
    using folder = new Folder();
    const { errors } = await folder.load(
      'pools: { gpu: { volumes: ["/run/x.people:/v"] } }\nsocket: /run/x.sock\npeople: { groups: { lab: { role: look } } }',
    );
    expect(errors.map(({ message }) => message)).toEqual([expect.stringContaining('would let jobs talk to onejob')]);
  });
});

const group = (name: string, more: Partial<PeopleGroup> = {}): PeopleGroup => ({
  name,
  role: 'look',
  pools: [],
  volumes: [],
  images: [],
  logs: 'own',
  cards: null,
  cardsEach: null,
  weight: 1,
  ...more,
});
const accounts = (groups: Record<string, { gid: number; members: string[] }>): Accounts => ({
  groups: new Map(Object.entries(groups)),
  users: [
    { name: 'root', uid: 0, gid: 0 },
    { name: 'ada', uid: 1000, gid: 1000 },
    { name: 'bob', uid: 1001, gid: 50 },
  ],
});

describe('people', () => {
  it('are members of a group, by list or as their own, and never root', () => {
    const found = peopleOf(accounts({ lab: { gid: 50, members: ['ada', 'root', 'nobody-here'] } }), [group('lab')]);
    expect([...found.keys()].toSorted()).toEqual([1000, 1001]);
  });

  it('have what the first of their groups says; a group that is gone, or has another name now, gives nothing', () => {
    const groups = [group('staff', { role: 'operate' }), group('lab')];
    const found = peopleOf(accounts({ lab: { gid: 50, members: ['ada'] }, staff: { gid: 60, members: ['ada'] } }), groups);
    expect([found.get(1000)?.group.name, found.get(1001)?.group.name]).toEqual(['staff', 'lab']);
    expect(peopleOf(accounts({ lab2: { gid: 50, members: ['ada'] } }), groups).size).toBe(0);
  });

  it('are told apart from those of groups whose names only look like theirs', () => {
    expect(parseGroups('lab:x:50:ada,bob\ndomain lab:x:51:eve\nbad line\nx:y:z:\n')).toEqual([
      ['lab', { gid: 50, members: ['ada', 'bob'] }],
      ['domain lab', { gid: 51, members: ['eve'] }],
    ]);
    expect(parseUsers('ada:x:1000:50::/:/bin/sh\nbad\n:x:1:1::\neve:x::\n\u001b[2J:x:7:7::\n')).toEqual([
      { name: 'ada', uid: 1000, gid: 50 },
    ]);
  });

  it('keep what they have while the host does not say who they are, and changes are told once', async () => {
    let answer: Accounts | Error = accounts({ lab: { gid: 50, members: [] } });
    const people = new People({ groups: [group('lab'), group('gone')], halfLife: 1 }, async () => {
      if (answer instanceof Error) throw answer;
      return answer;
    });
    let told = 0;
    people.onChange(() => void told++);
    await people.look();
    await people.look();
    expect([told, people.missing, people.of(1001)?.name, people.of(1000)]).toEqual([1, ['gone'], 'bob', null]);
    answer = new Error('no directory');
    await expect(people.look()).rejects.toThrow('no directory');
    expect([told, people.all().length]).toEqual([1, 1]);
    answer = accounts({});
    await people.look();
    expect([told, people.all()]).toEqual([2, []]);
    people.close();
  });
});
