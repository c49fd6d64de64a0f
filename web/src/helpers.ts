/**
 * A device's side of secure sums with helpers (federate/secagg/helpers.py): its vector leaves under a mask for every
 * helper, and the coordinator sees sums alone. Federation, helpers and how few may be added up it knows from the
 * federation's public file, not from servers.
 */
import { fromHex, joined, same, utf8, type Bytes } from "./bytes.js";
import { BadInput } from "./errors.js";
import { agreedKey, bytesOf, checkValue, digest, maskWords, packed, publicHalf, roundKey } from "./masks.js";

const KEY_PURPOSE = utf8("veilrec round key\n");
const ED25519 = { name: "Ed25519" };
const WIDTH = 64; // bits of a sum
const [MOST_HELPERS, MOST_NUMBERS] = [16, 1 << 27] as const;
const [TERMS_BYTES, KEY_BYTES, SIGNATURE_BYTES, CHECK_BYTES, LENGTH_BYTES] = [49, 32, 64, 32, 8] as const;

/** What the public file says of secure sums. */
export interface SecureSums {
  readonly helpers: readonly string[]; // their lasting keys, in hexadecimal digits
  readonly least: number; // devices without which no sum is opened
  readonly most_devices: number; // that a sum is made for
}

/** Who signs here, and as which device. */
export interface Signer {
  readonly key: CryptoKey;
  readonly place: number; // at the coordinator; helpers believe it only with a signature of the key that is known there
}

interface Invitation {
  readonly session: Bytes;
  readonly length: number;
  readonly keys: readonly Bytes[]; // of the helpers, for this round
  readonly checkKey: Bytes;
}

export function checkSecureSums(found: SecureSums): boolean {
  const { helpers, least, most_devices } = found;
  return (
    Array.isArray(helpers) &&
    helpers.length >= 1 &&
    helpers.length <= MOST_HELPERS &&
    new Set(helpers).size === helpers.length &&
    helpers.every((key) => /^[0-9a-f]{64}$/.test(key)) &&
    [least, most_devices].every((count) => Number.isSafeInteger(count) && count >= 2 && count <= 2 ** 20)
  );
}

function refused(why: string): never {
  throw new BadInput(`the invitation to a secure sum ${why}: nothing is sent`);
}

/** The two contents of a round under masks: the invitation, and what a round is without them. */
export function parted(content: Bytes): [Bytes, Bytes] {
  if (content.length < LENGTH_BYTES) refused("is not whole");
  const length = new DataView(content.buffer, content.byteOffset).getBigUint64(0, true);
  if (length > BigInt(content.length - LENGTH_BYTES)) refused("is not whole");
  const middle = LENGTH_BYTES + Number(length);
  return [content.slice(LENGTH_BYTES, middle), content.slice(middle)];
}

/** The vector under a mask for every helper; made again it has other masks, so it is kept until it has arrived. */
export async function masked(content: Bytes, values: BigInt64Array, federation: string, sums: SecureSums, signer: Signer, own?: CryptoKeyPair): Promise<Bytes> {
  const { session, length, keys, checkKey } = await invited(content, federation, sums);
  if (values.length !== length) refused(`adds up ${length} numbers, and there are ${values.length}`);
  const pair = own ?? (await roundKey());
  const mine = await publicHalf(pair.publicKey);
  const said = joined(KEY_PURPOSE, statement(session, "device", signer.place, mine));
  const signature = new Uint8Array(await crypto.subtle.sign(ED25519, signer.key, said));
  const plain = new BigUint64Array(values.buffer, values.byteOffset, length);
  const words = new BigUint64Array(1 + length); // the check, then the vector
  words[0] = await checkValue(plain, checkKey);
  words.set(plain, 1);
  for (let helper = 0; helper < keys.length; helper++) {
    const key = await agreedKey(pair.privateKey, keys[helper] as Bytes, utf8("helper mask"), session, packed(helper), packed(signer.place));
    const mask = await maskWords(key, words.length);
    for (let at = 0; at < words.length; at++) words[at] = (words[at] as bigint) + (mask[at] as bigint); // modulo 2^64
  }
  return joined(packed(signer.place), mine, signature, bytesOf(words));
}

function statement(session: Bytes, role: "device" | "helper", number: number, key: Bytes): Bytes {
  return joined(session, utf8(role.padEnd(8)), packed(number), key);
}

/** Read and believe an invitation: of this federation, with its helpers, whose keys these have signed for this sum. */
async function invited(content: Bytes, federation: string, sums: SecureSums): Promise<Invitation> {
  let at = 0;
  const take = (count: number): Bytes => {
    if (at + count > content.length) refused("is not whole");
    at += count;
    return content.slice(at - count, at);
  };
  const terms = take(TERMS_BYTES);
  const view = new DataView(terms.buffer);
  const [length, width, least] = [view.getUint32(40, true), view.getUint8(44), view.getUint32(45, true)];
  const id = new Uint8Array(await crypto.subtle.digest("SHA-256", utf8(federation)));
  if (!same(terms.subarray(0, 4), utf8("VRS1")) || !same(terms.subarray(4, 36), id)) refused("is of another federation");
  if (width !== WIDTH || length < 1 || length > MOST_NUMBERS) refused("is about numbers that are not known here");
  if (least < sums.least) refused(`would open the sum of ${least} devices, and this one takes part among ${sums.least} or more`);
  const helpers = sums.helpers.map(fromHex);
  if (new DataView(take(4).buffer).getUint32(0, true) !== helpers.length) refused("names other helpers than the federation’s file");
  if (!helpers.every((helper) => same(take(KEY_BYTES), helper))) refused("names other helpers than the federation’s file");
  const session = await digest(utf8("veilrec secure sum"), utf8("helpers"), terms, ...helpers);
  const keys: Bytes[] = [];
  for (const [place, helper] of helpers.entries()) {
    if (new DataView(take(4).buffer).getUint32(0, true) !== place) refused("has the keys of helpers in no order");
    const [key, signature] = [take(KEY_BYTES), take(SIGNATURE_BYTES)];
    const lasting = await crypto.subtle.importKey("raw", helper, ED25519, false, ["verify"]);
    const said = joined(KEY_PURPOSE, statement(session, "helper", place, key));
    if (!(await crypto.subtle.verify(ED25519, lasting, signature, said))) refused(`has a key that helper ${place} did not sign`);
    keys.push(key);
  }
  const checkKey = take(CHECK_BYTES);
  if (at !== content.length) refused("goes on behind its end");
  return { session, length, keys, checkKey };
}
