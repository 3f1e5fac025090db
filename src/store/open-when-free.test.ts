import { expect, test } from 'vitest';
import { scratch } from '../../test/support/scratch.ts';
import { openWhenFree } from './open-when-free.ts';
import { openStore } from './store.ts';

test('waits for a manager that ends by itself, and not for one that is there to stay', async () => {
  using dir = scratch();
  const stays = openStore(dir.path);
  await expect(openWhenFree(dir.path, { temporary: false })).rejects.toMatchObject({ code: 'E_STATE_LED' });
  stays.close();
  const temporary = openStore(dir.path, { temporary: true });
  await expect(openWhenFree(dir.path, { temporary: true })).rejects.toMatchObject({ code: 'E_STATE_LED' });
  const next = openWhenFree(dir.path, { temporary: false });
  await Promise.resolve();
  temporary.close();
  const opened = await next;
  expect(opened.owner).toBe(temporary.owner);
  opened.close();
});
