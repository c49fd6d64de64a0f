import { type Bytes } from "./bytes.js";
import { FederationFile } from "./trainer.js";
import type { Store } from "./store.js";
type Kind = "report" | "round";
/** A message as it left, or is about to. */
export interface SentMessage {
    readonly federation: string;
    readonly kind: Kind;
    readonly number: number;
    readonly bytes: Bytes;
    readonly tensors?: readonly string[];
    readonly promise: string;
    readonly at: string;
    readonly receipt: string;
}
export interface Participation {
    readonly on: boolean;
    readonly client: string;
    readonly file: FederationFile;
    readonly share: number;
    readonly spent: string;
    readonly atMost: string;
    readonly messages: readonly SentMessage[];
}
/** What is signed (federate/identity.py). */
export declare function statementFor(federation: string, client: string, kind: string, number: number, content: Bytes): Promise<string>;
/** The name of the client, the key and the digest of what was agreed on, of an invitation `CLIENT:SECRET:DIGEST`. */
export declare function readInvitation(given: string): Promise<[string, CryptoKey, string]>;
export declare class TakingPart {
    private readonly store;
    private readonly history;
    private readonly onEntry;
    private running;
    private lives;
    constructor(store: Store, history: () => Promise<string[]>, // ids, the latest last
    onEntry?: () => void);
    /** Take part from now on, with an invitation and the federation's public file. Nothing is sent by this. */
    join(invitation: string, file: Bytes): Promise<void>;
    turn(on: boolean): Promise<void>;
    /** What a person sees of it; null where this browser never joined one. */
    participation(): Promise<Participation | null>;
    /** Until it is over (true), or somebody turns it off (false). What happens is said in words. */
    live(say: (words: string) => void): Promise<boolean>;
    private serve;
    /** The message of a task: made and charged once, on disk before anybody gets it, and the same ever after. */
    private answer;
    /** What a message is about, and its bytes, under masks where the coordinator is to see sums alone. */
    private made;
    /** That it was taken is said once; another tab that sends the same again learns that it is known. */
    private acknowledge;
    /** Whether a life goes on: neither here nor in another tab somebody has turned it off. */
    private isOn;
    private link;
    private state;
}
export {};
