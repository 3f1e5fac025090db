/** How calls of CI services end, for metrics. */

/** `denied`: 401 and 403. `throttled`: 429. `refused`: any other 4xx. `failed`: 5xx. `unreachable`: no answer. */
export const callResults = ['ok', 'denied', 'throttled', 'refused', 'failed', 'unreachable'] as const;
export type CallResult = (typeof callResults)[number];

/** The same `fetch`, which tells how each call ended. A call that its caller gave up is not told. */
export function counted(send: typeof fetch, tell: (result: CallResult) => void): typeof fetch {
  return async (input, init) => {
    try {
      const answer = await send(input, init);
      tell(resultOf(answer.status));
      return answer;
    } catch (error) {
      const signal = init?.signal;
      const isOver = signal?.aborted === true && !(signal.reason instanceof DOMException && signal.reason.name === 'TimeoutError');
      if (!isOver) tell('unreachable');
      throw error;
    }
  };
}

function resultOf(status: number): CallResult {
  if (status === 401 || status === 403) return 'denied';
  if (status === 429) return 'throttled';
  if (status >= 500) return 'failed';
  return status >= 400 ? 'refused' : 'ok';
}
