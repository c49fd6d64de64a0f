/** Releases: nothing of one is used before its signature, its age and every file's hash are checked. */
import { fromBase64, fromHex, joined, sha256, utf8, type Bytes } from "./bytes.js";
import type { Program } from "./encoder.js";
import { BadRelease, UnknownKey } from "./errors.js";
import type { Adjacency, Guarantee, Unit } from "./guarantee.js";
import type { Kind } from "./queries.js";
import type { RankingProgram } from "./veil.js";

export const CLIENT = 2; // the newest `minimum_client` that this code satisfies
const SIGNED = utf8("veilrec release\n");
const ROTATED = utf8("veilrec key rotation\n");
const LARGEST_MANIFEST = 1 << 20;
export const LARGEST_FILE = 1 << 26; // bytes of a file that is fetched; others of a release may be larger
const MOST_ROTATIONS = 64;

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
  readonly keys: readonly { readonly old: string; readonly new: string; readonly signature: string }[];
}

/** What a browser remembers: the key of the first release that it saw, and the newest version of every name. */
export interface Trust {
  readonly key: string | null;
  readonly newest: Readonly<Record<string, { readonly version: number; readonly digest: string }>>;
}

export interface Verified {
  readonly manifest: Manifest;
  readonly trust: Trust; // to be remembered from now on
  readonly firstUse: boolean;
}

function isText(value: unknown): value is string {
  return typeof value === "string";
}

function isKey(value: unknown): value is string {
  return isText(value) && /^[0-9a-f]{64}$/.test(value);
}

async function signedBy(key: string, signature: unknown, message: Bytes): Promise<boolean> {
  if (!isKey(key) || !isText(signature)) return false;
  try {
    const bytes = fromBase64(signature);
    if (bytes.length !== 64) return false;
    const imported = await crypto.subtle.importKey("raw", fromHex(key), { name: "Ed25519" }, false, ["verify"]);
    return await crypto.subtle.verify({ name: "Ed25519" }, imported, bytes, message);
  } catch (error) {
    if (error instanceof DOMException && error.name === "NotSupportedError")
      throw new BadRelease("this browser cannot check Ed25519 signatures: update it; nothing unchecked is used");
    return false;
  }
}

/** Whether a trusted key has handed over to the wanted one; every step is signed by the key before it. */
async function handedOver(trusted: string, wanted: string, rotations: Envelope["keys"]): Promise<boolean> {
  if (rotations.length > MOST_ROTATIONS) throw new BadRelease(`there are ${rotations.length} rotations of keys: too many`);
  const reached = new Set([trusted]);
  for (const step of rotations) {
    const sentence = isKey(step.old) && isKey(step.new) ? joined(ROTATED, fromHex(step.old), fromHex(step.new)) : null;
    if (sentence === null || !(await signedBy(step.old, step.signature, sentence)))
      throw new BadRelease("a rotation of keys is not signed by the key before it: nothing of the release is used");
    if (reached.has(step.old)) reached.add(step.new);
  }
  // A key that was given up signs nothing any more.
  return reached.has(wanted) && !rotations.some((step) => step.old === wanted);
}

function isEnvelope(value: unknown): value is Envelope {
  const { manifest, signature, keys } = (value ?? {}) as Partial<Envelope>;
  return (
    isText(manifest) &&
    manifest.length <= LARGEST_MANIFEST &&
    typeof signature === "object" &&
    signature !== null &&
    signature.format === 1 &&
    Array.isArray(keys) &&
    keys.every((step) => typeof step === "object" && step !== null)
  );
}

function isEntry(entry: unknown): entry is FileEntry {
  const { bytes, sha256: digest } = (entry ?? {}) as Partial<FileEntry>;
  return Number.isSafeInteger(bytes) && (bytes as number) >= 0 && isKey(digest);
}

function parsed(content: string): Manifest {
  let manifest: Partial<Manifest>;
  try {
    manifest = JSON.parse(content) as Partial<Manifest>;
  } catch {
    throw new BadRelease("the manifest of the release is no JSON");
  }
  if (typeof manifest !== "object" || manifest === null || manifest.format !== 1)
    throw new BadRelease("the release has another format than 1: reload the page for a newer client");
  if (!Number.isSafeInteger(manifest.minimum_client) || (manifest.minimum_client as number) > CLIENT)
    throw new BadRelease(`the release is for clients from ${manifest.minimum_client}, this is ${CLIENT}: reload the page`);
  const { name, version, sizes, offers, files } = manifest;
  if (!isText(name) || name === "" || !Number.isSafeInteger(version) || (version as number) < 1)
    throw new BadRelease("the release has no name, or no version from 1");
  if (typeof sizes !== "object" || !Array.isArray(offers) || typeof files !== "object" || files === null)
    throw new BadRelease("the manifest of the release lacks sizes, offers or files");
  for (const [path, entry] of Object.entries(files))
    if (!isEntry(entry) || !/^[\w.-]+(\/[\w.-]+)*$/.test(path) || path.split("/").some((part) => /^\.+$/.test(part)))
      throw new BadRelease(`the manifest of the release names ${path.slice(0, 60)} in a way that is not allowed`);
  return manifest as Manifest;
}

/** Check an envelope against what this browser remembers; nothing of it is read before its signature is right. */
export async function verifyRelease(envelope: unknown, trust: Trust): Promise<Verified> {
  if (!isEnvelope(envelope)) throw new BadRelease("the server sends no signed release");
  const message = utf8(envelope.manifest);
  const { key, signature } = envelope.signature;
  if (!(await signedBy(key, signature, joined(SIGNED, message))))
    throw new BadRelease("the signature of the release is wrong: it was altered, or is not signed; nothing of it is used");
  if (!(await handedOver(trust.key ?? key, key, envelope.keys)))
    throw new UnknownKey(
      `the release is signed by ${key.slice(0, 16)}, and this browser trusts ${(trust.key ?? "no such key").slice(0, 16)}:` +
        " ask whoever made it whether that is right",
      key,
      trust.key ?? "",
    );
  const manifest = parsed(envelope.manifest);
  const { name, version } = manifest;
  const digest = await sha256(message);
  const before = Object.hasOwn(trust.newest, name) ? trust.newest[name] : undefined;
  if (before !== undefined && version < before.version)
    throw new BadRelease(`the server went back to version ${version} of ${name}; version ${before.version} was here before`);
  if (before !== undefined && version === before.version && digest !== before.digest)
    throw new BadRelease(`version ${version} of ${name} was here before with other contents: a new one needs a new number`);
  const newest = { ...trust.newest, [name]: { version, digest } };
  return { manifest, trust: { key, newest }, firstUse: trust.key === null };
}

/** A file of a release, once its length and hash are those that were signed. */
export async function checkedFile(manifest: Manifest, path: string, content: Bytes): Promise<Bytes> {
  const entry = Object.hasOwn(manifest.files, path) ? manifest.files[path] : undefined;
  if (entry === undefined) throw new BadRelease(`the release has no file ${path}`);
  if (content.length !== entry.bytes || (await sha256(content)) !== entry.sha256)
    throw new BadRelease(`${path} of the release was altered: nothing of it is used`);
  return content;
}
