/** The only door out: every request goes through here, and is written down with all that it carries. */
import { type Bytes } from "./bytes.js";
import type { Store } from "./store.js";
export interface Entry {
    readonly number: number;
    readonly at: string;
    readonly method: "GET" | "POST";
    readonly path: string;
    readonly type: string;
    readonly body: string;
    readonly what: string;
    readonly cost: string;
    readonly charged: boolean;
    readonly status: number;
    readonly received: number;
    readonly times?: number;
}
export interface Outgoing {
    readonly method: "GET" | "POST";
    readonly path: string;
    readonly type?: string;
    readonly body?: Bytes;
    readonly what: string;
    readonly cost: string;
    readonly charged?: boolean;
    readonly headers?: Readonly<Record<string, string>>;
    readonly repeats?: boolean;
    readonly most: number;
}
/** There was no answer: the server is away, or refuses. */
export declare class NoAnswer extends Error {
    readonly status: number;
    readonly charged: string;
    name: string;
    constructor(message: string, status: number, charged?: string);
    /** Whether to ask again later: the server is gone, busy, or has only just started. */
    get away(): boolean;
}
export declare class Outbox {
    private readonly store;
    private readonly server;
    private readonly onEntry;
    constructor(store: Store, server: string, onEntry?: () => void);
    send(request: Outgoing): Promise<Bytes>;
    /** Newest first. */
    journal(): Promise<Entry[]>;
    private note;
}
