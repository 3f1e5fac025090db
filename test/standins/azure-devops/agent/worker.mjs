/** The job itself: its steps, its records, its end (agent `JobRunner.cs`, `JobServerQueue.cs`). */
import { mkdirSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { connect } from './connection.mjs';
import { openConsole } from './console.mjs';
import { wait } from './habits.mjs';
import { runScript } from './step.mjs';

/**
 * Runs the job of `message` and tells the service about it, in the job's own name. Gives the result:
 * `succeeded`, `failed` or `canceled`. `cancelled` is fired to cancel it.
 */
export async function work({ message, root, settings, once, trace, cancelled }) {
  const retry = retrying(trace);
  const endpoint = message.resources.endpoints.find((entry) => entry.name === 'SystemVssConnection');
  const token = endpoint.authorization.parameters.AccessToken;
  const connection = await retry(() => connect(endpoint.url, async () => `Bearer ${token}`));
  const { planId, scopeIdentifier, planType } = message.plan;
  const plan = (method, location, values, options) =>
    connection.call(method, location, { scopeIdentifier, hubName: planType, planId, ...values }, options);
  const timelineId = message.timeline.id;
  const update = (record) =>
    retry(() => plan('PATCH', 'records', { timelineId }, { body: { count: 1, value: [record] } })).catch((error) =>
      trace(`Record lost: ${error.message}`),
    );
  const variables = Object.entries(message.variables ?? {});
  const hide = variables.flatMap(([, { value, isSecret }]) => (isSecret && value ? [value] : []));
  const screen = openConsole({ plan, timelineId, hide: [token, ...hide], retry, trace });

  await plan('GET', 'timelines', { timelineId }).catch((error) => trace(`Timeline: ${error.message}`));
  const job = { id: message.jobId, type: 'Job', name: message.jobDisplayName, workerName: settings.agentName, startTime: time() };
  await update({ ...job, state: 'inProgress' });
  screen.use(message.jobId);
  screen.line(`Starting: ${message.jobDisplayName}`);

  let result = 'succeeded';
  const folders = makeFolders(root, settings);
  const env = { ...process.env, ...environment(variables, folders, settings, root) };
  let order = 1;
  for (const step of message.steps ?? []) {
    if (result !== 'succeeded' || cancelled.aborted) break;
    const name = step.displayName ?? step.name ?? 'CmdLine';
    const record = { id: step.id, parentId: message.jobId, type: 'Task', name, order: order++, startTime: time() };
    await update({ ...record, state: 'inProgress' });
    screen.use(step.id);
    screen.line(`##[section]Starting: ${name}`);
    const script = step.inputs?.script ?? '';
    const fine = await runScript({ id: step.id, script, env, line: screen.line, cancelled, trace, ...folders });
    if (cancelled.aborted) result = 'canceled';
    else if (!fine) result = 'failed';
    screen.line(`##[section]Finishing: ${name}`);
    await update({ ...record, ...(await finished(screen, step.id, result)) });
  }
  if (cancelled.aborted) result = 'canceled';
  screen.use(message.jobId);
  screen.line(`Finishing: ${message.jobDisplayName}`);
  await update({ ...job, ...(await finished(screen, message.jobId, result)) });
  screen.close();
  if ((message.plan.version ?? 0) >= 8) {
    const { requestId, jobId } = message;
    const body = { name: 'JobCompleted', requestId, jobId, result, agentShuttingDown: once };
    await retry(() => plan('POST', 'events', {}, { body }));
  }
  return result;
}

async function finished(screen, id, result) {
  const logId = await screen.keep(id).catch(() => null);
  const log = logId === null ? {} : { log: { id: logId } };
  return { state: 'completed', result, finishTime: time(), percentComplete: 100, ...log };
}

function time() {
  return new Date().toISOString();
}

function makeFolders(root, settings) {
  const work = resolve(root, settings.workFolder);
  const folders = { folder: join(work, '1', 's'), temp: join(work, '_temp') };
  for (const path of Object.values(folders)) mkdirSync(path, { recursive: true });
  return folders;
}

/** Variables as a script sees them: upper case, underscores, no secrets (agent `VarUtil`). */
function environment(variables, { folder, temp }, settings, root) {
  const plain = variables.filter(([, { isSecret }]) => !isSecret);
  const named = (name) => name.replaceAll(/[. ]/g, '_').toUpperCase();
  return {
    ...Object.fromEntries(plain.map(([name, { value }]) => [named(name), value ?? ''])),
    AGENT_NAME: settings.agentName,
    AGENT_ID: String(settings.agentId),
    AGENT_HOMEDIRECTORY: root,
    AGENT_WORKFOLDER: resolve(root, settings.workFolder),
    AGENT_TEMPDIRECTORY: temp,
    BUILD_SOURCESDIRECTORY: folder,
    TF_BUILD: 'True',
  };
}

/** Five tries, as the real worker's, with its pauses. */
function retrying(trace) {
  return async (call) => {
    for (let tries = 1; ; tries += 1) {
      try {
        return await call();
      } catch (error) {
        trace(`Try ${tries} failed: ${error.message}`);
        if (tries === 5) throw error;
        await sleep(wait(10_000));
      }
    }
  };
}
