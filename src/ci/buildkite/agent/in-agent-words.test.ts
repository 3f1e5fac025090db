import { expect, it } from 'vitest';
import { agentWord } from './in-agent.ts';

const job = '13abb996-ee67-486c-8027-cc76ead04ec8';
/** As 3.137.0 writes it where its output is not a terminal. */
const coloured = (text: string) =>
  `\u001b[38;5;48m2026-11-23 23:19:35 INFO  \u001b[0m \u001b[38;5;243mbox-ci-1\u001b[0m \u001b[0m${text}\u001b[0m `;

it.each([
  ['Successfully registered agent "box-ci-1" with tags [queue=default]', { said: 'online' }],
  ['Waiting for instructions...', { said: 'online' }],
  ['Waiting for work...', { said: 'online' }],
  [`Assigned job ${job}. Accepting...`, { said: 'assigned', job }],
  ['failed to accept job: PUT https://agent.example/v3/jobs/x/accept: 422', { said: 'failed' }],
  ['Failed to run job: its start was refused', { said: 'failed' }],
  [
    `Starting job at https://buildkite.com/acme/demo/builds/1#${job}`,
    { said: 'began', build: 'https://buildkite.com/acme/demo/builds/1' },
  ],
  [
    `Starting job ${job} for build at https://buildkite.com/acme/demo/builds/1`,
    { said: 'began', build: 'https://buildkite.com/acme/demo/builds/1' },
  ],
  [`Starting job ${job}`, { said: 'began', build: null }],
  ['Process with PID: 29031 finished with Exit Status: 3, Signal: nil', { said: 'exited', code: 3 }],
  [`Finished job at https://buildkite.com/acme/demo/builds/1#${job}`, { said: 'finished' }],
  [`Finished job ${job}`, { said: 'finished' }],
])('%s', (text, word) => {
  expect(agentWord(coloured(text))).toEqual(word);
  expect(agentWord(`2026-11-23 23:19:35 INFO   box-ci-1 ${text}`)).toEqual(word);
});

it.each([
  'Starting 1 Agent(s)',
  'Gracefully stopping agent. Since there is no job running, the agent will disconnect immediately',
  `Assigned job ../../etc. Accepting...`,
  'Disconnected',
  '',
])('nothing follows from: %s', (text) => {
  expect(agentWord(coloured(text))).toBeNull();
});
