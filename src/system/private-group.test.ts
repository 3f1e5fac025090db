import { expect, test } from 'vitest';
import { isPrivateGroup } from './private-group.ts';

const passwd =
  'root:x:0:0:root:/:/bin/sh\nonejob:x:65532:65532::/tmp:/bin/sh\nann:x:1000:100::/home/ann:/bin/sh\nbob:x:1001:100::/home/bob:/bin/sh\n';

test.each([
  ['a group of one user is private', 65532, 65532, 'onejob:x:65532:\n', true],
  ['also if it lists its user', 65532, 65532, 'onejob:x:65532:onejob\n', true],
  ['but not for another user', 65532, 1000, 'onejob:x:65532:\n', false],
  ['nor with another member', 65532, 65532, 'onejob:x:65532:ann\n', false],
  ['a group that two users have is shared', 100, 1000, 'users:x:100:\n', false],
  ['a group that nobody has is not known', 4711, 65532, '', false],
])('%s', (_, gid, uid, group, isPrivate) => {
  expect(isPrivateGroup(gid, uid, { passwd, group })).toBe(isPrivate);
});
