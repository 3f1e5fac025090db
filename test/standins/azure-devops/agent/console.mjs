/** What a job's steps print, on its way to the service: the feed as it comes, the log and the records at the end. */
const beat = 250;

/**
 * `plan` is the plan's connection, bound to its addresses. `hide` is a list of values that are shown as `***`.
 * `retry` runs one call, again when it fails.
 */
export function openConsole({ plan, timelineId, hide, retry, trace }) {
  let waiting = [];
  let current = null;
  const logs = new Map();
  const flush = async () => {
    const lines = waiting;
    waiting = [];
    for (const recordId of new Set(lines.map((entry) => entry.recordId))) {
      const value = lines.filter((entry) => entry.recordId === recordId).map((entry) => entry.text);
      const body = { stepId: recordId, count: value.length, value };
      await plan('POST', 'feed', { timelineId, recordId }, { body }).catch((error) => trace(`Feed lost: ${error.message}`));
    }
  };
  let sending = Promise.resolve();
  const timer = setInterval(() => {
    if (waiting.length > 0) sending = sending.then(flush);
  }, beat);

  return {
    /** Lines go to this record from now on. */
    use(recordId) {
      current = recordId;
    },
    line(said) {
      const text = hide.reduce((clean, secret) => clean.replaceAll(secret, '***'), said);
      waiting.push({ recordId: current, text });
      if (!logs.has(current)) logs.set(current, []);
      logs.get(current).push(`${new Date().toISOString().replace('Z', '0000Z')} ${text}`);
    },
    /** Sends what waits, and the record's whole log; gives the log's id, null if there isn't one. */
    async keep(recordId) {
      sending = sending.then(flush);
      await sending;
      const lines = logs.get(recordId);
      if (lines === undefined) return null;
      return await retry(async () => {
        const { value } = await plan('POST', 'logs', {}, { body: { path: `logs\\${recordId}` } });
        const body = Buffer.from(`${lines.join('\n')}\n`);
        const headers = { 'content-type': 'application/octet-stream' };
        await plan('POST', 'logs', { logId: value.id }, { body, headers });
        return value.id;
      });
    },
    close: () => clearInterval(timer),
  };
}
