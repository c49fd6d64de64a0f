/**
 * A client's side of secure sums with helpers (federate/secagg/helpers.py): its vector leaves under a mask for every
 * helper, and the coordinator sees sums alone. Federation, helpers and how few may be added up it knows from the
 * federation's public file, not from servers.
 */
import { fromHex, joined, same, utf8, type Bytes } from "./bytes.js";
import { BadInput, Declined } from "./errors.js";
import { added, agreedKey, checkValue, digest, maskBytes, packed, publicHalf, roundKey, wordsOf } from "./masks.js";

const KEY_PURPOSE = utf8("veilrec round key\n");
const ED25519 = { name: "Ed25519" };
const MOST_HELPERS = 16;
const [KEY_BYTES, SIGNATURE_BYTES, CHECK_BYTES, LENGTH_BYTES, DIGEST_BYTES] = [32, 64, 32, 8, 32] as const;
const WIDTH_OF_ROUNDS = 64; // bits of a sum of updates, as in rounds whose messages are seen
const FIRST_REPORT_SUM = 2 ** 31; // rounds have the numbers below
const TERMS_BYTES = 49; // before the two digests
const WHOLE_VOTE = 2 ** 24; // the largest number of a report

/** What the public file says of secure sums. */
export interface SecureSums {
  readonly helpers: readonly string[]; // their lasting keys, in hexadecimal digits
  readonly least: number; // clients without which no sum is opened
  readonly max_clients: number; // that a sum is made for
}

/** Who signs here, and as which client. */
export interface Signer {
  readonly key: CryptoKey;
  readonly place: number; // at the coordinator; helpers believe it only with a signature of the key that is known there
}

/** A sum among all those of a federation: which one it is, and how large its numbers are. */
export interface Sum {
  readonly number: number;
  readonly width: number; // bits that hold every number of the sum, its sign included
}

interface Invitation {
  readonly session: Bytes;
  readonly signedSession: Bytes; // with the key of the check, which is the same for all who are added up
  readonly keys: readonly Bytes[]; // of the helpers, for this round
  readonly checkKey: Bytes;
}

export function checkSecureSums(found: SecureSums, clients: number): boolean {
  const { helpers, least, max_clients } = found;
  return (
    Array.isArray(helpers) &&
    helpers.length >= 1 &&
    helpers.length <= MOST_HELPERS &&
    new Set(helpers).size === helpers.length &&
    helpers.every((key) => /^[0-9a-f]{64}$/.test(key)) &&
    [least, max_clients, clients].every((count) => Number.isSafeInteger(count) && count >= 2 && count <= 2 ** 20)
  );
}

/** The sum of the updates of a round. */
export function sumOfRound(number: number): Sum {
  if (!(number < FIRST_REPORT_SUM)) refused("gives a round the number of a sum of reports");
  return { number, width: WIDTH_OF_ROUNDS };
}

/** The sum of what so many clients report (federate/sums.py): helpers add it up once, so that it has one number. */
export function sumOfReports(number: number, clients: number): Sum {
  if (number !== FIRST_REPORT_SUM) refused(`is to a sum of reports with number ${number}, which no federation with helpers has`);
  return { number, width: BigInt(clients * WHOLE_VOTE).toString(2).length + 1 };
}

function refused(why: string): never {
  throw new BadInput(`the invitation to a secure sum ${why}: nothing is sent`);
}

/** The two contents of a task under masks: the invitation, and what the task is without them. */
export function parted(content: Bytes): [Bytes, Bytes] {
  if (content.length < LENGTH_BYTES) refused("is not whole");
  const length = new DataView(content.buffer, content.byteOffset).getBigUint64(0, true);
  if (length > BigInt(content.length - LENGTH_BYTES)) refused("is not whole");
  const middle = LENGTH_BYTES + Number(length);
  return [content.slice(LENGTH_BYTES, middle), content.slice(middle)];
}

/** Refuse to act on other bytes than those that everybody of the sum acts on. */
export async function checkActedOn(invitation: Bytes, acted: Bytes): Promise<void> {
  const said = invitation.slice(TERMS_BYTES, TERMS_BYTES + DIGEST_BYTES);
  if (!same(said, await digest(acted))) throw new Declined("another digest", "what came to be acted on is not what the terms of the sum name: it is not answered");
}

/**
 * The vector under a mask for every helper; made again it has other masks, so it is kept until it has arrived. `acted`
 * is what this client has acted on, as it came, and `federation` the digest of what was agreed on.
 */
export async function masked(
  content: Bytes,
  acted: Bytes,
  values: BigInt64Array,
  about: Sum,
  federation: Bytes,
  sums: SecureSums,
  signer: Signer,
  own?: CryptoKeyPair,
): Promise<Bytes> {
  await checkActedOn(content, acted);
  const { session, signedSession, keys, checkKey } = await invited(content, termsOf(federation, about, values.length, sums.least), sums);
  const pair = own ?? (await roundKey());
  const mine = await publicHalf(pair.publicKey);
  const said = joined(KEY_PURPOSE, statement(signedSession, "client", signer.place, mine));
  const signature = new Uint8Array(await crypto.subtle.sign(ED25519, signer.key, said));
  const word = about.width <= 32 ? 4 : 8; // bytes
  const plain = new BigUint64Array(values.buffer, values.byteOffset, values.length);
  const [check, vector] = [wordsOf([await checkValue(plain, checkKey)], 8), wordsOf(plain, word)];
  for (let helper = 0; helper < keys.length; helper++) {
    const key = await agreedKey(pair.privateKey, keys[helper] as Bytes, utf8("helper mask"), session, packed(helper), packed(signer.place));
    const mask = await maskBytes(key, check.length + vector.length);
    added(check, mask.subarray(0, check.length), 8);
    added(vector, mask.subarray(check.length), word);
  }
  return joined(packed(signer.place), mine, signature, signedSession, check, vector);
}

/**
 * What a sum is to everybody (federation/secagg/terms.py): a client works it out by itself, from the federation's file.
 * Behind it come the digest of what clients act on, and that of the list of those who may be counted.
 */
function termsOf(federation: Bytes, { number, width }: Sum, length: number, least: number): Bytes {
  return joined(utf8("VRS2"), federation, packed(number), packed(length), Uint8Array.of(width), packed(least));
}

function statement(session: Bytes, role: "client" | "helper", number: number, key: Bytes): Bytes {
  return joined(session, utf8(role.padEnd(8)), packed(number), key);
}

/** Read and believe an invitation: to this very sum, with the federation's helpers, whose keys these have signed for it. */
async function invited(content: Bytes, terms: Bytes, sums: SecureSums): Promise<Invitation> {
  let at = 0;
  const take = (count: number): Bytes => {
    if (at + count > content.length) refused("is not whole");
    at += count;
    return content.slice(at - count, at);
  };
  if (!same(take(TERMS_BYTES), terms)) refused("is of another federation, or has other terms than its file says for this sum");
  const digests = take(2 * DIGEST_BYTES);
  const helpers = sums.helpers.map(fromHex);
  if (new DataView(take(4).buffer).getUint32(0, true) !== helpers.length) refused("names other helpers than the federation’s file");
  if (!helpers.every((helper) => same(take(KEY_BYTES), helper))) refused("names other helpers than the federation’s file");
  const session = await digest(utf8("veilrec secure sum"), utf8("helpers"), joined(terms, digests), ...helpers);
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
  const signedSession = await digest(utf8("signed session"), session, await digest(utf8("check key"), checkKey));
  return { session, signedSession, keys, checkKey };
}
