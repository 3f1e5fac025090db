/**
 * The login of this browser: a key that no script can read, and the key of the daemon that it logged in to. Scripts of another
 * program that had this port meanwhile can use the key as long as their page is open, and take nothing with them.
 */
import { authorizationOf, type PublicKey, proofText, requestText, type SignedRequest } from '../../src/api/signed.ts';

export interface Login {
  readonly session: string;
  readonly key: CryptoKey;
  readonly daemon: CryptoKey;
  readonly port: number;
}

const curve = { name: 'ECDSA', namedCurve: 'P-256' };
const signing = { name: 'ECDSA', hash: 'SHA-256' };
const [database, store, only] = ['onejob', 'login', 'this'];
const channel = 'onejob-login';
/** Of earlier versions: anyone who read it could log in. */
const formerly = 'onejob-session';

/** null if nobody has logged in here. */
export async function readLogin(): Promise<Login | null> {
  localStorage.removeItem(formerly);
  const found = await within<Login | undefined>('readonly', (logins) => logins.get(only));
  return found ?? null;
}

/** For all tabs of this origin, so of this port. No cookie: browsers would send that to the other ports of this host too. */
export async function keepLogin(login: Login): Promise<void> {
  await within('readwrite', (logins) => logins.put(login, only));
  tell();
}

export async function forgetLogin(): Promise<void> {
  await within('readwrite', (logins) => logins.delete(only));
  tell();
}

/** Calls back when another tab has logged in or out. */
export function onLoginChange(call: () => void): void {
  new BroadcastChannel(channel).addEventListener('message', call);
}

function tell(): void {
  const others = new BroadcastChannel(channel);
  others.postMessage(null);
  others.close();
}

/** A key for a login, and what the daemon gets of it. */
export async function makeKey(): Promise<{ readonly own: CryptoKey; readonly key: PublicKey }> {
  const { publicKey, privateKey } = await crypto.subtle.generateKey(curve, false, ['sign', 'verify']);
  const { x = '', y = '' } = await crypto.subtle.exportKey('jwk', publicKey);
  return { own: privateKey, key: { x, y } };
}

export function readKey({ x, y }: PublicKey): Promise<CryptoKey> {
  return crypto.subtle.importKey('jwk', { kty: 'EC', crv: 'P-256', x, y }, curve, false, ['verify']);
}

export function newNonce(): string {
  return toText(crypto.getRandomValues(new Uint8Array(16)));
}

/** The header `authorization` for a request with this body. */
export async function signed(
  { session, key }: Login,
  request: Omit<SignedRequest, 'body'> & { readonly body: string },
): Promise<string> {
  const body = toText(new Uint8Array(await crypto.subtle.digest('SHA-256', bytesOf(request.body))));
  const signature = await crypto.subtle.sign(signing, key, bytesOf(requestText({ ...request, body })));
  return authorizationOf({ session, signature: toText(new Uint8Array(signature)) }, { ...request, body });
}

/** Whether an answer to a request with this nonce is of the daemon of the login. */
export async function isProof({ daemon, port }: Login, header: string | null, nonce: string): Promise<boolean> {
  const [challenge = '', signature = ''] = header?.split('.') ?? [];
  if (!/^[\w-]{86}$/.test(signature)) return false;
  return crypto.subtle.verify(signing, daemon, toBytes(signature), bytesOf(proofText({ nonce, challenge, port })));
}

function bytesOf(text: string) {
  return new TextEncoder().encode(text);
}

/** In base64url. */
function toText(bytes: Uint8Array): string {
  return btoa(String.fromCharCode(...bytes))
    .replaceAll('+', '-')
    .replaceAll('/', '_')
    .replaceAll('=', '');
}

function toBytes(text: string) {
  return Uint8Array.from(atob(text.replaceAll('-', '+').replaceAll('_', '/')), (letter) => letter.charCodeAt(0));
}

async function within<T>(mode: IDBTransactionMode, act: (logins: IDBObjectStore) => IDBRequest<T>): Promise<T> {
  const opening = indexedDB.open(database, 1);
  opening.onupgradeneeded = () => void opening.result.createObjectStore(store);
  const opened = await settled(opening);
  try {
    const transaction = opened.transaction(store, mode);
    const asked = act(transaction.objectStore(store));
    await new Promise<void>((resolve, reject) => {
      transaction.oncomplete = () => resolve();
      transaction.onabort = () => reject(transaction.error);
    });
    return asked.result;
  } finally {
    opened.close();
  }
}

function settled<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
