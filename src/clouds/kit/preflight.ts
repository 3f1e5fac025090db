/** What the preflights of all clouds share: how questions are asked, and what they say of prices and of the end of life. */
import { hasCode, messageOf, OnejobError } from '../../base/errors.ts';
import { type Finding, fine, problem, warning } from '../../base/finding.ts';
import type { Cloud, HostPlan } from '../../ports/cloud.ts';
import { offerText, spotsOf } from '../offer.ts';

/** One question, and what its findings are about. */
export type PreflightQuestion = readonly [
  subject: string,
  ask: (subject: string) => Promise<readonly Finding[]> | readonly Finding[],
];

/** What it finds; an error is a finding, too. */
async function examine([subject, ask]: PreflightQuestion): Promise<readonly Finding[]> {
  try {
    return await ask(subject);
  } catch (error) {
    if (!(error instanceof OnejobError)) return [problem(subject, messageOf(error))];
    const found = problem(subject, error.message, error.hint);
    return [error.retry && error.code !== 'E_CLOUD_CREDENTIAL' ? { ...found, mayPass: true } : found];
  }
}

/** A second time, since a token may have become invalid before its time: the second one is new. */
const signInTwice = async ([subject, signIn]: PreflightQuestion): Promise<readonly Finding[]> =>
  examine([
    subject,
    async (of) => {
      try {
        return await signIn(of);
      } catch (error) {
        if (!hasCode(error, 'E_CLOUD_CREDENTIAL') || !error.retry) throw error;
        return signIn(of);
      }
    },
  ]);

/** All at once. The findings are in the order of the questions. */
export async function examineAll(questions: readonly PreflightQuestion[]): Promise<Finding[]> {
  return (await Promise.all(questions.map(examine))).flat();
}

/** First who signs in; without a credential every other answer would be the same, so only `always` is asked then. */
export async function examineAfter(
  signIn: PreflightQuestion,
  others: readonly PreflightQuestion[],
  always: readonly PreflightQuestion[] = [],
): Promise<Finding[]> {
  const signedIn = await signInTwice(signIn);
  const isIn = signedIn.every(({ level }) => level !== 'error');
  return [...signedIn, ...(await examineAll(isIn ? [...others, ...always] : always))];
}

/** For each type what budgets count. A budget allows no type whose price is unknown. */
export async function priceFindings(
  subject: string,
  plan: HostPlan,
  price: Cloud['price'],
  signal: AbortSignal,
): Promise<Finding[]> {
  const offers = plan.types.flatMap((type) => spotsOf(plan).map((spot) => ({ type, spot })));
  const found = offers.map(async ({ type, spot }) => {
    const what = offerText({ type, spot, zone: null });
    const own = plan.prices[type];
    if (own !== undefined) return fine(subject, `${what} costs ${own} USD per hour, as "prices" of the host says.`);
    const known = await price({ type, spot }, signal);
    if (known !== null) return fine(subject, `${what} costs about ${known.perHour} USD per hour (estimate, as of ${known.asOf}).`);
    const unknown = `The price of ${what} is unknown`;
    const todo = `Write one under hosts.${plan.host}.prices, such as { ${type}: 0.62 }.`;
    if (plan.budget !== null) return problem(subject, `${unknown}, so the budget rules it out.`, todo);
    return warning(subject, `${unknown}.`, 'A host with a "budget" makes no machine of it until "prices" of the host has one.');
  });
  return Promise.all(found);
}

/** That nothing but onejob ends machines. `instead`: what makes the cloud end them. */
export const managerOnly = (subject: string, instead = 'Remove it, so that the cloud ends them, too.'): Finding =>
  warning(subject, 'Only onejob ends its machines, because of "death_date: manager-only".', instead);
