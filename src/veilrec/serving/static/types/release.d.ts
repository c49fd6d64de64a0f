/** Releases: nothing of one is used before its signature, its age and every file's hash are checked. */
import { type Bytes } from "./bytes.js";
import type { Program } from "./encoder.js";
import type { Adjacency, Guarantee, Unit } from "./guarantee.js";
import type { Kind } from "./queries.js";
import type { RankingProgram } from "./veil.js";
export declare const LARGEST_FILE: number;
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
    readonly sizes: {
        readonly items: number;
        readonly dim: number;
        readonly interests: number;
    };
    readonly encoder: Program | RankingProgram | null;
    readonly offers: readonly Offer[];
    readonly files: Readonly<Record<string, FileEntry>>;
}
/** What the server hands out: the very text that was signed, its signature, and how keys followed each other. */
export interface Envelope {
    readonly manifest: string;
    readonly signature: {
        readonly format: number;
        readonly key: string;
        readonly signature: string;
    };
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
    readonly newest: Readonly<Record<string, {
        readonly version: number;
        readonly digest: string;
    }>>;
    readonly revoked?: readonly Revocation[];
}
export interface Verified {
    readonly manifest: Manifest;
    readonly trust: Trust;
    readonly firstUse: boolean;
    readonly warning: string;
}
/** Check an envelope against what this browser remembers; nothing of it is read before its signature is right. */
export declare function verifyRelease(envelope: unknown, trust: Trust, now?: number): Promise<Verified>;
/** A file of a release, once its length and hash are those that were signed. */
export declare function checkedFile(manifest: Manifest, path: string, content: Bytes): Promise<Bytes>;
