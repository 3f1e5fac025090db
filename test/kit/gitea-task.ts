/** Tasks as the real Gitea 1.26.4 gives them to runners, in protobuf (`actions-proto-go` 0.4, runner/v1). */
import { longField, varintOf } from '../../src/ci/gitea/proto.ts';

export interface TaskSpec {
  /** In the place of what a push to `main` of acme/demo has. */
  readonly context?: Readonly<Record<string, unknown>>;
  readonly secrets?: Readonly<Record<string, string>>;
  readonly vars?: Readonly<Record<string, string>>;
  readonly payload?: string;
}

export const payload = `name: a
on: push
jobs:
  j:
    runs-on: ci
    steps:
      - run: |
          echo one
          echo two
      - uses: actions/checkout@v4
        env: { GITHUB_API_URL: mine, YES: "on" }
`;

/** The answer to `FetchTask`; null: without a task. */
export function taskAnswer(id: number | null, spec: TaskSpec = {}): Buffer<ArrayBuffer> {
  return Buffer.concat([id === null ? none : longField(1, taskOf(id, spec)), number(2, 7)]);
}

function taskOf(id: number, { context, secrets, vars, ...more }: TaskSpec): Buffer {
  const token = `token-of-${id}`;
  return Buffer.concat([
    number(1, id),
    longField(2, Buffer.from(more.payload ?? payload)),
    longField(3, struct({ ...pushed, token, gitea_runtime_token: `runtime-${token}`, ...context })),
    mapOf(4, { GITHUB_TOKEN: token, GITEA_TOKEN: token, ...secrets }),
    mapOf(7, vars ?? {}),
    // A field that onejob does not know.
    longField(15, Buffer.from('later')),
  ]);
}

const sha = 'c0ffee'.padEnd(40, '0');
const pushed = {
  repository: 'acme/demo',
  repositoryUrl: 'http://forge/acme/demo',
  ref: 'refs/heads/main',
  sha,
  actor: 'ann',
  event_name: 'push',
  run_id: '9',
  run_number: '7',
  run_attempt: '1',
  job: 'j',
  workflow: 'a.yml',
  ref_protected: false,
  event: { commits: [{ id: 'c0ffee', added: [], size: 1.5 }], before: null },
};

export const forkPull = (from: string | null = 'http://forge/mallory/demo') => ({
  ref: 'refs/pull/12/head',
  event_name: 'pull_request',
  head_ref: 'main',
  base_ref: 'main',
  event: { pull_request: { number: 12, head: { ref: 'main', repo: from === null ? null : { html_url: from } } } },
});

const none = Buffer.alloc(0);
const number = (no: number, value: number): Buffer => Buffer.from([...varintOf(no * 8), ...varintOf(value)]);
const text = (no: number, value: string): Buffer => longField(no, Buffer.from(value));
const mapOf = (no: number, values: Readonly<Record<string, string>>): Buffer =>
  Buffer.concat(Object.entries(values).map(([key, value]) => longField(no, Buffer.concat([text(1, key), text(2, value)]))));

function struct(values: Readonly<Record<string, unknown>>): Buffer {
  const entry = ([key, value]: [string, unknown]) => longField(1, Buffer.concat([text(1, key), longField(2, anyOf(value))]));
  return Buffer.concat(Object.entries(values).map(entry));
}

function anyOf(value: unknown): Buffer {
  if (value === null) return number(1, 0);
  if (typeof value === 'string') return text(3, value);
  if (typeof value === 'boolean') return number(4, value ? 1 : 0);
  if (Array.isArray(value)) return longField(6, Buffer.concat(value.map((one) => longField(1, anyOf(one)))));
  if (typeof value === 'object') return longField(5, struct(value as Record<string, unknown>));
  const bytes = Buffer.alloc(9, 17);
  bytes.writeDoubleLE(Number(value), 1);
  return bytes;
}
