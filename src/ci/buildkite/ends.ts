/** What the service is told of a job whose agent did not say itself how it ended. */
import type { JobResult } from '../../core/slot.ts';
import type { EndRequest } from './broker/protocol.ts';

export function endOf(result: JobResult): EndRequest {
  switch (result.kind) {
    case 'timeout':
      return { reason: "The job took longer than the pool's `timeout`, and was ended.", signalReason: 'agent_stop' };
    case 'cancelled':
      return { reason: 'The job was cancelled.', signalReason: 'agent_stop' };
    case 'oom':
      return lost('its sandbox ran out of memory');
    case 'lost':
      return lost(result.reason);
    case 'unstartable':
      return lost(result.failure.message);
    case 'code':
      return lost(`its agent ended with exit code ${result.code} without a result`);
    case 'signal':
      return lost(`its agent was ended by ${result.signal} without a result`);
  }
}

/** `why`: the middle of a sentence. */
export function lost(why: string): EndRequest {
  return { reason: `This job was lost: ${why}.`, signalReason: 'process_run_error' };
}
