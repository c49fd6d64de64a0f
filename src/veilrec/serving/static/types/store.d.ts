/** What the browser keeps, in IndexedDB; a change is on disk, or did not happen. */
export declare const STORES: readonly ["settings", "trust", "ledger", "messages", "journal", "history", "keys", "release", "pools"];
export type StoreName = (typeof STORES)[number];
/** Reads and writes of one transaction; only these may be waited for inside of it. */
export declare class Change {
    private readonly transaction;
    constructor(transaction: IDBTransaction);
    get<T>(store: StoreName, key: string): Promise<T | undefined>;
    all<T>(store: StoreName): Promise<T[]>;
    keys(store: StoreName): Promise<string[]>;
    put(store: StoreName, key: string, value: unknown): void;
    clear(store: StoreName): void;
    delete(store: StoreName, key: string): void;
}
export declare class Store {
    private readonly database;
    private constructor();
    static open(name: string): Promise<Store>;
    /** All of it happens, or none; when this returns, it is on disk (durability "strict"). */
    change<T>(stores: readonly StoreName[], act: (change: Change) => Promise<T>): Promise<T>;
    read<T>(stores: readonly StoreName[], act: (change: Change) => Promise<T>): Promise<T>;
    get<T>(store: StoreName, key: string): Promise<T | undefined>;
    put(store: StoreName, key: string, value: unknown): Promise<void>;
    close(): void;
}
