/** Releases: nothing of one is used before its signature, its age and every file's hash are checked. */
import { fromBase64, fromHex, joined, sha256, text, utf8, type Bytes } from "./bytes.js";
import type { Program } from "./encoder.js";
import { BadRelease, UnknownKey } from "./errors.js";
import type { Adjacency, Guarantee, Unit } from "./guarantee.js";
import { parseManifest } from "./manifest.js";
import type { Kind } from "./queries.js";
import type { RankingProgram } from "./veil.js";

const SIGNED = utf8("veilrec release\n");
const ROTATED = utf8("veilrec key rotation\n");
const LARGEST_MANIFEST = 1 << 20;
export const LARGEST_FILE = 1 << 26; // bytes of a file that is fetched; others of a release may be larger
const REVOKED = utf8("veilrec key revocation\n");
const MOST_SENTENCES = 64;
const DAY_MS = 86_400_000;
const LONGEST_GRACE_MS = 14 * DAY_MS;
const GRACE_SHARE = 4; // of how long a release is good for, at most this part

export interface Offer {
  readonly mode: string;
  readonly kind: Kind;
  readonly size: number;
  readonly epsilon?: number | null;
  readonly delta?: number | null;
  readonly unit?: Unit | null;
  readonly adjacency?: Adjacency | null;
  readonly guarantee?: Guarantee;
  readonly how?: string;
  readonly pool?: number;
  readonly noise?: "laplace" | "gaussian";
  readonly scale?: number;
  readonly sigma?: number;
  readonly clip?: number;
  readonly slots?: number;
}

export interface FileEntry {
  readonly bytes: number;
  readonly sha256: string;
}

export interface Manifest {
  readonly format: number;
  readonly minimum_client: number;
  readonly name: string;
  readonly version: number;
  readonly created: string;
  readonly expires: string;
  readonly method: string;
  readonly family: string;
  readonly protected: boolean;
  readonly why_unprotected: readonly string[];
  readonly guarantee: Guarantee;
  readonly sizes: { readonly items: number; readonly dim: number; readonly interests: number };
  readonly encoder: Program | RankingProgram | null; // how a user vector is made, or how a catalogue is ranked
  readonly offers: readonly Offer[];
  readonly files: Readonly<Record<string, FileEntry>>;
}

/** What the server hands out: the very text that was signed, its signature, and how keys followed each other. */
export interface Envelope {
  readonly manifest: string;
  readonly signature: { readonly format: number; readonly key: string; readonly signature: string };
  readonly keys: readonly (Rotation | Revocation)[];
}

/** "From now on, the new key", signed by the old one. */
export interface Rotation {
  readonly old: string;
  readonly new: string;
  readonly signature: string;
}

/** "Never again this key", signed by another one. */
export interface Revocation {
  readonly revoked: string;
  readonly by: string;
  readonly signature: string;
}

/** What a browser remembers: the key of the first release that it saw, and the newest version of every name. */
export interface Trust {
  readonly key: string | null;
  readonly newest: Readonly<Record<string, { readonly version: number; readonly digest: string }>>;
  readonly revoked?: readonly Revocation[]; // that were honoured, which hold whatever is left out later
}

export interface Verified {
  readonly manifest: Manifest;
  readonly trust: Trust; // to be remembered from now on
  readonly firstUse: boolean;
  readonly warning: string; // of its last day; empty while that is far away
}

function isText(value: unknown): value is string {
  return typeof value === "string";
}

function isKey(value: unknown): value is string {
  return isText(value) && /^[0-9a-f]{64}$/.test(value);
}

function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function hasOnly(value: unknown, ...names: string[]): boolean {
  return isObject(value) && Object.keys(value).sort().join() === names.sort().join();
}

async function signedBy(key: string, signature: unknown, message: Bytes): Promise<boolean> {
  if (!isKey(key) || !isText(signature)) return false;
  try {
    const bytes = fromBase64(signature);
    if (bytes.length !== 64 || btoa(String.fromCharCode(...bytes)) !== signature) return false;
    const imported = await crypto.subtle.importKey("raw", fromHex(key), { name: "Ed25519" }, false, ["verify"]);
    return await crypto.subtle.verify({ name: "Ed25519" }, imported, bytes, message);
  } catch (error) {
    if (error instanceof DOMException && error.name === "NotSupportedError")
      throw new BadRelease("this browser cannot check Ed25519 signatures: update it; nothing unchecked is used");
    return false;
  }
}

/** All keys that some rotations lead to, in whichever order they stand. */
function reachedFrom(start: string, rotations: readonly Rotation[]): Set<string> {
  const reached = new Set([start]);
  for (const _ of rotations) for (const step of rotations) if (reached.has(step.old)) reached.add(step.new);
  return reached;
}

/** The keys to accept for a trusted one, and the revocations to honour from now on; every sentence is checked. */
async function judged(trusted: string, sentences: Envelope["keys"], known: readonly Revocation[]): Promise<[Set<string>, Revocation[]]> {
  if (sentences.length > MOST_SENTENCES) throw new BadRelease(`there are ${sentences.length} rotations and revocations of keys: too many`);
  for (const step of sentences) {
    const [by, other] = "revoked" in step ? [step.by, step.revoked] : [step.old, step.new];
    const whole = hasOnly(step, ...("revoked" in step ? ["by", "revoked", "signature"] : ["new", "old", "signature"]));
    const sentence = whole && isKey(by) && isKey(other) ? joined("revoked" in step ? REVOKED : ROTATED, fromHex(by), fromHex(other)) : null;
    if (sentence === null || !(await signedBy(by, step.signature, sentence)))
      throw new BadRelease("a rotation or revocation of keys is not signed by the key that says it: nothing of the release is used");
  }
  let rotations = sentences.filter((step): step is Rotation => !("revoked" in step));
  const reached = reachedFrom(trusted, rotations);
  const honoured: Revocation[] = [];
  for (const one of [...known, ...sentences.filter((step): step is Revocation => "revoked" in step)]) {
    if (honoured.some((each) => each.revoked === one.revoked && each.by === one.by)) continue;
    const counts = reached.has(one.by) && !honoured.some((each) => each.revoked === one.by);
    if (!known.includes(one) && !counts) continue;
    honoured.push(one);
    const all = rotations; // of a revoked key those hand-overs count that lead to its revoker
    rotations = all.filter((step) => step.old !== one.revoked || reachedFrom(step.new, all).has(one.by));
  }
  const accepted = reachedFrom(trusted, rotations);
  for (const { revoked } of honoured) accepted.delete(revoked);
  return [accepted, honoured];
}

function isEnvelope(value: unknown): value is Envelope {
  if (!isObject(value)) return false;
  const { manifest, signature, keys } = value;
  if (!isText(manifest) || manifest.length > LARGEST_MANIFEST || !Array.isArray(keys) || !keys.every(isObject)) return false;
  return hasOnly(signature, "format", "key", "signature") && (signature as Envelope["signature"]).format === 1;
}

/** The manifest's last day and the time around it in which it is used with a warning. */
function warningOf({ name, version, created, expires }: Manifest, now: number): string {
  const [end, which] = [Date.parse(expires), `release ${name} version ${version}`];
  const grace = Math.min(LONGEST_GRACE_MS, (end - Date.parse(created)) / GRACE_SHARE);
  if (now >= end + grace)
    throw new BadRelease(`${which} expired at ${expires} and is not used any more: a newer one is needed, or the clock here is wrong`);
  if (now >= end) return `${which} expired at ${expires}: it will soon be refused`;
  return now >= end - grace ? `${which} expires at ${expires}: a newer one is needed soon` : "";
}

/** Check an envelope against what this browser remembers; nothing of it is read before its signature is right. */
export async function verifyRelease(envelope: unknown, trust: Trust, now = Date.now()): Promise<Verified> {
  if (!isEnvelope(envelope)) throw new BadRelease("the server sends no signed release");
  const message = utf8(envelope.manifest);
  const { key, signature } = envelope.signature;
  if (!(await signedBy(key, signature, joined(SIGNED, message))))
    throw new BadRelease("the signature of the release is wrong: it was altered, or is not signed; nothing of it is used");
  const [accepted, revoked] = await judged(trust.key ?? key, envelope.keys, trust.revoked ?? []);
  if (revoked.some((each) => each.revoked === key))
    throw new BadRelease(`the release is signed by ${key.slice(0, 16)}, a key that was revoked: nothing of it is used`);
  if (!accepted.has(key) || envelope.keys.some((step) => "old" in step && step.old === key)) // a key that was given up
    throw new UnknownKey(
      `the release is signed by ${key.slice(0, 16)}, and this browser trusts ${(trust.key ?? "no such key").slice(0, 16)}:` +
        " ask whoever made it whether that is right",
      key,
      trust.key ?? "",
    );
  const manifest = parseManifest(text(message)); // what was signed, should a letter of it have had no bytes
  const { name, version } = manifest;
  const digest = await sha256(message);
  const before = Object.hasOwn(trust.newest, name) ? trust.newest[name] : undefined;
  if (before !== undefined && version < before.version)
    throw new BadRelease(`the server went back to version ${version} of ${name}; version ${before.version} was here before`);
  if (before !== undefined && version === before.version && digest !== before.digest)
    throw new BadRelease(`version ${version} of ${name} was here before with other contents: a new one needs a new number`);
  const newest = { ...trust.newest, [name]: { version, digest } };
  const warning = warningOf(manifest, now);
  return { manifest, trust: { key, newest, revoked }, firstUse: trust.key === null, warning };
}

/** A file of a release, once its length and hash are those that were signed. */
export async function checkedFile(manifest: Manifest, path: string, content: Bytes): Promise<Bytes> {
  const entry = Object.hasOwn(manifest.files, path) ? manifest.files[path] : undefined;
  if (entry === undefined) throw new BadRelease(`the release has no file ${path}`);
  if (content.length !== entry.bytes || (await sha256(content)) !== entry.sha256)
    throw new BadRelease(`${path} of the release was altered: nothing of it is used`);
  return content;
}
