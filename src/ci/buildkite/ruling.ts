/** What becomes of a job that was accepted: decided on this host, from what the service says of it, before anything of it runs. */
import type { TrustConfig } from '../../config/config.ts';
import { type JobSecrets, openJobSecrets, type PinBook } from '../../secrets/job-secrets.ts';
import type { SecretKeys } from '../../secrets/keys.ts';
import { formatOf, secretsIn } from '../../secrets/open.ts';
import { looksSealed } from '../../secrets/sealed-format.ts';
import { type GivenJob, type JobFacts, jobFacts } from './job-facts.ts';
import { decideTrust } from './trust.ts';

export type Ruling =
  | {
      readonly kind: 'run';
      readonly trusted: boolean;
      /** Why it is not trusted, as a line for its log; null: it is. */
      readonly why: string | null;
      readonly facts: JobFacts;
      readonly secrets: JobSecrets['opened'];
    }
  /** `reason`: whole lines, for the job's log. */
  | { readonly kind: 'refused'; readonly facts: JobFacts; readonly reason: string };

export interface RulingParts {
  readonly trust: TrustConfig;
  /** Read anew for each job that has secrets; null where config names no key. @throws OnejobError E_SECRET, E_SECRET_KEY */
  readonly keys: () => Promise<SecretKeys | null>;
  readonly pins: PinBook;
}

/** @throws OnejobError when the key cannot be read, which is no fault of the job */
export async function rule(job: GivenJob, { trust, keys, pins }: RulingParts): Promise<Ruling> {
  const facts = jobFacts(job);
  const verdict = decideTrust(facts, trust);
  if (verdict.kind === 'refused') return { kind: 'refused', facts, reason: verdict.why };
  if (verdict.kind === 'untrusted') return { kind: 'run', trusted: false, why: verdict.why, facts, secrets: [] };
  const written = secretsIn(job.env);
  // A key that cannot be read must not stop jobs that need none.
  const opener = written.length === 0 ? null : await keys();
  if (opener === null) {
    // Variables of that name with a plain value are the pipeline's own matter.
    const encrypted = written.filter(({ text }) => looksSealed(text) || formatOf(text) !== null);
    if (encrypted.length > 0)
      return { kind: 'refused', facts, reason: encrypted.map(({ variable }) => withoutKey(variable)).join('\n') };
    return { kind: 'run', trusted: true, why: null, facts, secrets: [] };
  }
  const { organisation, pipeline } = facts;
  const { opened, refused } = await openJobSecrets({ env: job.env, organisation, pipeline, keys: opener, pins });
  if (refused.length > 0) return { kind: 'refused', facts, reason: refused.map(({ why }) => why).join('\n') };
  return { kind: 'run', trusted: true, why: null, facts, secrets: opened };
}

function withoutKey(variable: string): string {
  return `${variable} is encrypted, and the config of the host has no "secrets.key" to open it with.`;
}
