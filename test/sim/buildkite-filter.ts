/** The filter of a host in virtual time: its own rules and its own seal, and no HTTP in between. */
import { buildkiteRules } from '../../src/ci/buildkite/agent/filter-rules.ts';
import type { Filter } from '../../src/ci/filter/filter.ts';
import { readPath } from '../../src/ci/filter/rules.ts';
import { Seal } from '../../src/ci/filter/seal.ts';
import type { Ask, Reply } from './buildkite-wire.ts';
import type { SimProcess } from './process.ts';
import type { SimTime } from './time.ts';
import { pass } from './wire.ts';

/** Where agents in sandboxes find it. */
export const filterAuthority = '172.17.0.1:7070';

export class SimFilter {
  readonly #time: SimTime;
  /** The way to the service. */
  readonly #service: Ask;
  // A key that all plays have: sealed tokens differ anyway.
  readonly #seal = new Seal(new Uint8Array(32));
  refused = 0;

  constructor(time: SimTime, service: Ask) {
    this.#time = time;
    this.#service = service;
  }

  /** As one manager sees it. */
  access(manager: SimProcess): Filter {
    return {
      start() {},
      check: async () => [],
      listenFor: async (_context, signal) => {
        await pass(this.#time, 1, signal);
        if (manager.isDead) await new Promise<never>(() => {});
        return { origin: `http://${filterAuthority}`, ca: null, seal: this.#seal };
      },
      close: async () => {},
    };
  }

  /** What an agent in a sandbox says, passed on where the rules let it. */
  readonly ask: Ask = async (method, path, { token, body, signal }) => {
    const sealed = this.#seal.open(token);
    const asked = readPath(method, `/${path}`);
    if (sealed === null || typeof asked === 'string' || this.#time.wall >= sealed.until) return this.#refuse(401);
    const verdict = buildkiteRules.judge(sealed, asked);
    if (verdict.kind === 'refused') return this.#refuse(verdict.status);
    const reply = await this.#service(method, path, { token: sealed.token, body, signal });
    const isRewritten = verdict.kind === 'whole' && verdict.answer !== undefined && reply.status < 300;
    return isRewritten ? { ...reply, json: verdict.answer(reply.json, this.#seal, '172.17.0.1') } : reply;
  };

  #refuse(status: number): Reply {
    this.refused += 1;
    return { status, headers: {}, json: {} };
  }
}
