/**
 * The scripts that make a waiting sandbox an agent. Each ends by becoming the process that handles TERM: the agent's own `run.sh`
 * would swallow it. Secrets are written with builtins only, so that they stand in no argument and no temporary file.
 */
import { type Capabilities, capabilitiesFile } from './capabilities.ts';

/** Folder of the agent's own logs, in the workspace. */
export const diagFolder = '.onejob-diag';

export interface AgentScript {
  readonly root: string;
  readonly uid: number;
  readonly workspace: string;
  readonly capabilities: Capabilities;
}

/** The agent is known to the service already: only its files have to be put down. */
export function readyAgent(parts: AgentScript, files: readonly { readonly name: string; readonly text: string }[]): string {
  return [
    ...begin(parts),
    ...files.map(({ name, text }) => `rm -f ${name}; printf '%s' ${quote(text)} >${name} || exit 1`),
    ...capabilities(parts),
    'umask 022',
    'exec ./bin/Agent.Listener run --once',
  ].join('\n');
}

export interface SelfRegistration {
  readonly url: string;
  readonly pool: string;
  readonly name: string;
  readonly token: string;
}

/** The agent makes itself known with a token, which is gone from the sandbox before a job can come. */
export function configuringAgent(parts: AgentScript, { url, pool, name, token }: SelfRegistration): string {
  const flags = `--unattended --acceptTeeEula --replace --auth pat --url ${quote(url)} --pool ${quote(pool)} --agent ${quote(name)} --work _work`;
  return [
    ...begin(parts),
    ...capabilities(parts),
    'umask 022',
    // The agent takes it out of its environment when it has read it, and is another process than the one that runs jobs.
    `VSTS_AGENT_INPUT_TOKEN=${quote(token)} ./config.sh ${flags} </dev/null || exit 1`,
    'exec ./bin/Agent.Listener run --once',
  ].join('\n');
}

/** The image's own start script, which is given what such scripts expect. It keeps the token, and whoever's job it runs may read it. */
export function startingImage(start: string, workspace: string, { url, pool, name, token }: SelfRegistration): string {
  const slash = start.lastIndexOf('/');
  return [
    `cd ${quote(start.slice(0, slash) || '/')} || exit 1`,
    ...diagnostics(workspace),
    `export AZP_URL=${quote(url)} AZP_TOKEN=${quote(token)} AZP_POOL=${quote(pool)} AZP_AGENT_NAME=${quote(name)}`,
    // What the image wants to be kept to itself stays so.
    'export AGENT_ALLOW_RUNASROOT=1 VSO_AGENT_IGNORE="${VSO_AGENT_IGNORE:+$VSO_AGENT_IGNORE,}AZP_TOKEN,AZP_TOKEN_FILE"',
    `if [ -x ${quote(start)} ]; then exec ${quote(start)} --once; fi`,
    `exec sh ${quote(start)} --once`,
  ].join('\n');
}

function begin({ root, uid, workspace }: AgentScript): string[] {
  return [
    `cd ${quote(root)} || exit 1`,
    ...diagnostics(workspace),
    ...(uid === 0 ? ['export AGENT_ALLOW_RUNASROOT=1'] : []),
    'umask 077',
  ];
}

function diagnostics(workspace: string): string[] {
  const folder = quote(`${workspace}/${diagFolder}`);
  return [`if mkdir -p ${folder} 2>/dev/null; then export AGENT_DIAGLOGPATH=${folder}; fi`];
}

function capabilities({ capabilities: found }: AgentScript): string[] {
  const text = capabilitiesFile(found);
  if (text === '') return [];
  // What the image brings itself stays, also without the end of its last line.
  const whole = `if [ -s .capabilities ]; then printf '\\n' >>.capabilities; fi`;
  return [whole, `printf '%s' ${quote(text)} >>.capabilities || exit 1`];
}

function quote(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
