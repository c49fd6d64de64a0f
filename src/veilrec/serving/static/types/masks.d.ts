/**
 * Masks that two sides agree on and nobody else can tell from noise, and the check beside a masked vector
 * (federate/secagg/masks.py and checksum.py): X25519, HKDF-SHA256, AES-256 in counter mode, words of 32 or 64 bits.
 */
import { type Bytes } from "./bytes.js";
type WordBytes = 4 | 8;
export declare function packed(count: number): Bytes;
/** SHA-256 of some byte strings, each with its length, so that no two lists of them meet. */
export declare function digest(...parts: Uint8Array[]): Promise<Bytes>;
/** A key for one round; a browser that cannot make one cannot take part in secure sums. */
export declare function roundKey(): Promise<CryptoKeyPair>;
export declare function publicHalf(key: CryptoKey): Promise<Bytes>;
/** A key that only the two sides can work out, of 32 bytes, for the use that `about` names. */
export declare function agreedKey(own: CryptoKey, other: Bytes, ...about: Uint8Array[]): Promise<Bytes>;
/** The first bytes of the mask of a key, which is used once. */
export declare function maskBytes(key: Bytes, count: number): Promise<Bytes>;
/** Whole numbers as they travel: the lowest bytes of each. */
export declare function wordsOf(values: Iterable<bigint>, size: WordBytes): Bytes;
/** Put a mask on words, in place; each is added by itself, modulo 2^32 or 2^64. */
export declare function added(words: Bytes, mask: Bytes, size: WordBytes): void;
/** One number beside a vector, so that a wrong sum is noticed: a' X b modulo 2^64, with X the vector row by row. */
export declare function checkValue(values: BigUint64Array, key: Bytes): Promise<bigint>;
export {};
