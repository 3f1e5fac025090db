/** What `doctor` and `status` say of the secrets of a config while a daemon runs: a date comes nearer, a file is removed. */
import type { Finding } from '../runtimes/runtime.ts';
import { checkSecret, describeSecret, type Variables } from '../secrets/reference.ts';
import { secretsOf } from './check-mounts.ts';
import type { Config } from './config.ts';

/**
 * One finding for each secret that is all right, and one for each thing that is not. `now`: wall clock, ms since the epoch.
 * What is in use goes on with the value it has, so a file that is gone is a warning here, where it keeps a daemon from starting.
 */
export async function secretFindings(
  config: Pick<Config, 'secretsKey' | 'services'>,
  now: number,
  variables?: Variables,
): Promise<Finding[]> {
  const found = await Promise.all(
    secretsOf(config).map(async ([subject, secret]): Promise<Finding[]> => {
      const { problem, warnings } = await checkSecret(secret, now, variables);
      const wrong = [...(problem === null ? [] : [problem]), ...warnings];
      if (wrong.length === 0) return [{ level: 'ok', subject, message: `It is there: ${describeSecret(secret)}.`, hint: null }];
      return wrong.map((text) => finding(subject, text));
    }),
  );
  return found.flat();
}

/** `expires on 2030-01-31, in a day; make a new one in time`: what is wrong, and after the semicolon what to do. */
function finding(subject: string, text: string): Finding {
  const [what = '', todo] = text.split('; ');
  const about = /^(expire|is )/.test(what) ? 'It' : 'Its';
  const message = what.startsWith('/') ? `${what}.` : `${about} ${what}.`;
  return {
    level: 'warning',
    subject,
    message,
    hint: todo === undefined ? null : `${todo.slice(0, 1).toUpperCase()}${todo.slice(1)}.`,
  };
}
