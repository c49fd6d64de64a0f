/**
 * Masks that two sides agree on and nobody else can tell from noise, and the check beside a masked vector
 * (federate/secagg/masks.py and checksum.py): X25519, HKDF-SHA256, AES-256 in counter mode, words of 64 bits.
 */
import { type Bytes } from "./bytes.js";
export declare function packed(count: number): Bytes;
/** SHA-256 of some byte strings, each with its length, so that no two lists of them meet. */
export declare function digest(...parts: Uint8Array[]): Promise<Bytes>;
/** A key for one round; a browser that cannot make one cannot take part in secure sums. */
export declare function roundKey(): Promise<CryptoKeyPair>;
export declare function publicHalf(key: CryptoKey): Promise<Bytes>;
/** A key that only the two sides can work out, of 32 bytes, for the use that `about` names. */
export declare function agreedKey(own: CryptoKey, other: Bytes, ...about: Uint8Array[]): Promise<Bytes>;
/** The first words of the mask of a key, which is used once. */
export declare function maskWords(key: Bytes, count: number): Promise<BigUint64Array>;
export declare function bytesOf(words: BigUint64Array): Bytes;
/** One number beside a vector, so that a wrong sum is noticed: a' X b modulo 2^64, with X the vector row by row. */
export declare function checkValue(values: BigUint64Array, key: Bytes): Promise<bigint>;
