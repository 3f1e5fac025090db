/** Answers of the API, against their schemas: for tests that start a server with `onAnswer`. */
import { isDeepStrictEqual } from 'node:util';
import { z } from 'zod';
import type { Route } from '../../src/api/route.ts';

/** @throws Error for an answer that is not as declared, also if it has a key that is not declared */
export function checkAnswer({ summary, answer }: Route, given: unknown): void {
  if (!(answer instanceof z.ZodType)) return;
  const sent: unknown = JSON.parse(JSON.stringify(given));
  if (!isDeepStrictEqual(answer.parse(sent), sent)) throw new Error(`an answer has keys that are not declared: "${summary}"`);
}
