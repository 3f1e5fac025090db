/** How a pod begins: it is created, and its image is there, or what keeps it from that is said. */
import { OnejobError } from '../../base/errors.ts';
import { type Clock, sleep } from '../../core/clock.ts';
import { type KubeClient, refusalOf } from './client.ts';
import type { Pod } from './pods.ts';

/** ms between two tries to create a pod for which there is no room. */
const lookAgain = 2_000;

interface CreateParts {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly body: object;
  /** In words: `Cannot <doing>`. */
  readonly doing: string;
  /** Hears what it waits for. */
  readonly waits: (why: string) => void;
}

/** Waits while the namespace has no room for one more pod. One that is there already is left as it is. */
export async function createPod({ client, clock, body, doing, waits }: CreateParts, signal: AbortSignal): Promise<void> {
  for (;;) {
    try {
      await client.bytes({ method: 'POST', path: client.path('pods'), body, doing, signal });
      return;
    } catch (error) {
      const { status, message, reason } = refusalOf(error) ?? {};
      if (reason === 'AlreadyExists') return;
      // A new namespace has no service account for a moment.
      const mayPass = status === 403 && /exceeded quota|serviceaccount .* not found/.test(`${message}`);
      if (!mayPass) throw status === 403 ? refusedPod(error as OnejobError) : error;
      waits(`${message}`);
      await sleep(clock, lookAgain, signal);
      signal.throwIfAborted();
    }
  }
}

/** The namespace does not allow such a pod, which is a matter of the pool. */
function refusedPod(error: OnejobError): OnejobError {
  const isPolicy = /violates PodSecurity|is forbidden: .*(admission|policy)/i.test(error.message);
  if (!isPolicy) return error;
  const hint = 'Write "security: restricted" and a "user" into the pool, or allow it in the namespace.';
  return new OnejobError('E_RECIPE', error.message, { hint, cause: error.cause });
}

/** Why a container waits that will not begin by itself, and the error that it is. */
const stuck: Readonly<Record<string, 'E_IMAGE_NOT_FOUND' | 'E_PULL_FAILED' | 'E_RECIPE'>> = {
  ErrImageNeverPull: 'E_IMAGE_NOT_FOUND',
  InvalidImageName: 'E_IMAGE_NOT_FOUND',
  ImagePullBackOff: 'E_PULL_FAILED',
  CreateContainerConfigError: 'E_RECIPE',
  CreateContainerError: 'E_RECIPE',
  RunContainerError: 'E_RECIPE',
};

/** Why a pod that waits will not begin; null: it may. `what`: in words, such as `agent a1`. */
export function stuckIn({ waiting, node }: Pod, what: string): OnejobError | null {
  const { reason, message } = waiting ?? { reason: '', message: '' };
  const code = stuck[reason];
  if (code === undefined) return null;
  const why = `Cannot start ${what} on node ${node}: ${reason}: ${message.trim()}.`;
  return new OnejobError(code, why, { retry: code === 'E_PULL_FAILED' });
}

/** Why a container that has ended never began; null: it did. */
export function unstarted({ terminated }: Pod, what: string): OnejobError | null {
  if (terminated?.reason !== 'StartError' && terminated?.reason !== 'ContainerCannotRun') return null;
  const hint = 'Its image needs a POSIX sh.';
  return new OnejobError('E_RECIPE', `Cannot start ${what}: ${terminated.message.trim()}.`, { hint });
}
