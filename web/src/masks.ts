/**
 * Masks that two sides agree on and nobody else can tell from noise, and the check beside a masked vector
 * (federate/secagg/masks.py and checksum.py): X25519, HKDF-SHA256, AES-256 in counter mode, words of 32 or 64 bits.
 */
import { joined, type Bytes } from "./bytes.js";
import { BadInput } from "./errors.js";

type WordBytes = 4 | 8;

const X25519 = { name: "X25519" };

export function packed(count: number): Bytes {
  const bytes = new Uint8Array(4);
  new DataView(bytes.buffer).setUint32(0, count, true);
  return bytes;
}

/** SHA-256 of some byte strings, each with its length, so that no two lists of them meet. */
export async function digest(...parts: Uint8Array[]): Promise<Bytes> {
  const lengths = parts.map((part) => new Uint8Array(BigUint64Array.of(BigInt(part.length)).buffer));
  const all = joined(...parts.flatMap((part, at) => [lengths[at] as Bytes, part]));
  return new Uint8Array(await crypto.subtle.digest("SHA-256", all));
}

/** A key for one round; a browser that cannot make one cannot take part in secure sums. */
export async function roundKey(): Promise<CryptoKeyPair> {
  try {
    return (await crypto.subtle.generateKey(X25519, false, ["deriveBits"])) as CryptoKeyPair;
  } catch {
    throw new BadInput("this browser has no X25519, which secure sums need: it cannot take part; use a newer browser");
  }
}

export async function publicHalf(key: CryptoKey): Promise<Bytes> {
  return new Uint8Array(await crypto.subtle.exportKey("raw", key));
}

/** A key that only the two sides can work out, of 32 bytes, for the use that `about` names. */
export async function agreedKey(own: CryptoKey, other: Bytes, ...about: Uint8Array[]): Promise<Bytes> {
  let shared: ArrayBuffer;
  try {
    const theirs = await crypto.subtle.importKey("raw", other, X25519, false, []);
    shared = await crypto.subtle.deriveBits({ ...X25519, public: theirs }, own, 256);
  } catch {
    throw new BadInput("a round key is no key to agree by: nothing is masked with it, and nothing is sent");
  }
  const secret = await crypto.subtle.importKey("raw", shared, "HKDF", false, ["deriveBits"]);
  const info = joined(...about.flatMap((part) => [packed(part.length), part]));
  return new Uint8Array(await crypto.subtle.deriveBits({ name: "HKDF", hash: "SHA-256", salt: new Uint8Array(0), info }, secret, 256));
}

/** The first bytes of the mask of a key, which is used once. */
export async function maskBytes(key: Bytes, count: number): Promise<Bytes> {
  const made = await crypto.subtle.importKey("raw", key, "AES-CTR", false, ["encrypt"]);
  const algorithm = { name: "AES-CTR", counter: new Uint8Array(16), length: 128 };
  return new Uint8Array(await crypto.subtle.encrypt(algorithm, made, new Uint8Array(count)));
}

/** Whole numbers as they travel: the lowest bytes of each. */
export function wordsOf(values: Iterable<bigint>, size: WordBytes): Bytes {
  const all = [...values];
  const bytes = new Uint8Array(size * all.length);
  const view = new DataView(bytes.buffer);
  all.forEach((value, at) => (size === 8 ? view.setBigUint64(8 * at, value, true) : view.setUint32(4 * at, Number(BigInt.asUintN(32, value)), true)));
  return bytes;
}

/** Put a mask on words, in place; each is added by itself, modulo 2^32 or 2^64. */
export function added(words: Bytes, mask: Bytes, size: WordBytes): void {
  const [own, other] = [words, mask].map(({ buffer, byteOffset, byteLength }) => new DataView(buffer, byteOffset, byteLength)) as [DataView, DataView];
  for (let at = 0; at < words.length; at += size)
    if (size === 8) own.setBigUint64(at, own.getBigUint64(at, true) + other.getBigUint64(at, true), true);
    else own.setUint32(at, own.getUint32(at, true) + other.getUint32(at, true), true);
}

/** One number beside a vector, so that a wrong sum is noticed: a' X b modulo 2^64, with X the vector row by row. */
export async function checkValue(values: BigUint64Array, key: Bytes): Promise<bigint> {
  const columns = Math.floor(Math.sqrt(values.length - 1)) + 1;
  const rows = Math.ceil(values.length / columns);
  const mask = await maskBytes(key, 8 * (rows + columns));
  const view = new DataView(mask.buffer);
  const factors = BigUint64Array.from({ length: rows + columns }, (_, at) => view.getBigUint64(8 * at, true));
  let check = 0n;
  for (let row = 0; row < rows; row++) {
    let sum = 0n;
    const from = row * columns;
    for (let at = from; at < Math.min(from + columns, values.length); at++)
      sum += (values[at] as bigint) * (factors[rows + at - from] as bigint);
    check = BigInt.asUintN(64, check + (factors[row] as bigint) * BigInt.asUintN(64, sum));
  }
  return check;
}
