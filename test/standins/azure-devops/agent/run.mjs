/** `run [--once]`: from the files to the exit code (agent `Agent.cs`, `Program.cs`). */
import { release } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { scanCapabilities } from './capabilities.mjs';
import { agentToken } from './connection.mjs';
import { stamp } from './diag.mjs';
import { wait } from './habits.mjs';
import { startJob } from './job.mjs';
import { Ending, openSession } from './session.mjs';
import { isConfigured, readSettings } from './settings.mjs';

const shutdownLimit = 30_000;

/** Gives the exit code. `stopping` fires on SIGTERM and SIGINT. */
export async function run({ root, version, once, print, trace, stopping }) {
  if (!isConfigured(root)) throw new Ending(1, 'Not configured. Run config.sh, or write .agent and its companions.');
  const read = sentence(() => readSettings(root));
  const { settings, credentials, privateKey } = read;
  trace(`Agent ${settings.agentName} (${settings.agentId}) of pool ${settings.poolName} at ${settings.serverUrl}, ${release()}`);
  print('Scanning for tool capabilities.');
  const capabilities = scanCapabilities({ root, name: settings.agentName, version });
  print('Connecting to the server.');
  if (stopping.aborted) return 0;

  const token = agentToken(credentials, privateKey);
  const parts = { settings, token, privateKey, version, capabilities, print, trace, signal: stopping };
  const session = await openSession(parts).catch((error) => {
    if (stopping.aborted) throw new Ending(0, null);
    throw error;
  });
  print(`${stamp()}: Listening for Jobs`);
  try {
    return await listen({ session, root, settings, once, print, trace, stopping });
  } finally {
    await session.close();
  }
}

/** A sentence about a file is an exit 1. */
function sentence(read) {
  try {
    return read();
  } catch (error) {
    throw new Ending(1, error.message);
  }
}

/** Takes messages until the job of a once-agent is over, the agent is stopped, or it has to update itself. */
async function listen({ session, root, settings, once, print, trace, stopping }) {
  const polling = new AbortController();
  const stop = AbortSignal.any([polling.signal, stopping]);
  const stopped = new Promise((resolve) => stopping.addEventListener('abort', () => resolve({ kind: 'stopped' }), { once: true }));
  let asking = null;
  let job = null;
  const begin = (message) => {
    const running = startJob({ message, connection: session.connection, root, settings, once, print, trace });
    return { ...running, event: running.finished.then(() => ({ kind: 'finished' })) };
  };
  const keeping = session.keepAlive(stop);
  try {
    while (!stopping.aborted) {
      asking ??= session.next(stop).then((message) => ({ kind: 'message', message }));
      const event = await Promise.race([asking, stopped, ...(job === null ? [] : [job.event])]);
      if (event.kind === 'stopped') break;
      if (event.kind === 'finished') {
        job = null;
        if (once) return 0;
        continue;
      }
      asking = null;
      const { message } = event;
      if (message.messageType === 'AgentRefresh') {
        if (process.env['agent.disableupdate']) trace('Told to update, and told not to.');
        else if (job === null) {
          await session.acknowledge(message);
          return await update({ settings, print, trace }, session, once ? 4 : 3, message.body.targetVersion);
        }
      } else if (/^(Pipeline)?(Agent)?JobRequest$/.test(message.messageType)) {
        if (job === null) job = begin(message.body);
        else {
          trace(`A second job (request ${message.body.requestId}) is left alone.`);
          continue;
        }
      } else if (message.messageType === 'JobCancellation') {
        if (job?.jobId === message.body.jobId) job.cancel();
        else if (job !== null) continue;
      } else trace(`A message of an unknown type: ${message.messageType}`);
      await session.acknowledge(message);
    }
    print('Exiting...');
    return 0;
  } finally {
    if (job !== null) {
      job.cancel();
      await Promise.race([job.finished, sleep(shutdownLimit, undefined, { ref: false })]);
    }
    polling.abort();
    asking?.catch(() => undefined);
    await keeping;
  }
}

/** What an agent says and does that has to update itself first. Nothing is downloaded. */
async function update({ settings, print, trace }, session, code, target) {
  const { poolId, agentId } = settings;
  const tell = (currentState) =>
    session.connection
      .call('PUT', 'updates', { poolId, agentId }, { query: { currentState }, body: {} })
      .catch((error) => trace(`Update state not told: ${error.message}`));
  print('Agent update in progress, do not shutdown agent.');
  print(`Downloading ${target} agent`);
  await tell(`Downloading ${target} agent`);
  await sleep(wait(2000));
  print('Generate and execute update script.');
  print('Agent will exit shortly for update, should back online within 10 seconds.');
  await tell('Agent will exit shortly for update, should back online within 10 seconds.');
  return code;
}
