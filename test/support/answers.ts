/** Answers of the API, against their schemas: for tests that start a server with `onAnswer`. */
import { partialDeepStrictEqual } from 'node:assert/strict';
import { z } from 'zod';
import type { Route } from '../../src/api/route.ts';

/** @throws Error for an answer that is not as declared, also if it has a key that is not declared */
export function checkAnswer({ answer }: Route, given: unknown): void {
  if (!(answer instanceof z.ZodType)) return;
  const sent: unknown = JSON.parse(JSON.stringify(given));
  // A client adds what an older daemon leaves out.
  partialDeepStrictEqual(answer.parse(sent), sent);
}
