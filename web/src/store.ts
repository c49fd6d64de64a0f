/** What the browser keeps, in IndexedDB; a change is on disk, or did not happen. */

export const STORES = ["settings", "trust", "ledger", "messages", "journal", "history", "keys", "release", "pools"] as const;
export type StoreName = (typeof STORES)[number];

function done<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error ?? new Error("IndexedDB refused"));
  });
}

/** Reads and writes of one transaction; only these may be waited for inside of it. */
export class Change {
  constructor(private readonly transaction: IDBTransaction) {}
  get<T>(store: StoreName, key: string): Promise<T | undefined> {
    return done(this.transaction.objectStore(store).get(key) as IDBRequest<T | undefined>);
  }
  all<T>(store: StoreName): Promise<T[]> {
    return done(this.transaction.objectStore(store).getAll() as IDBRequest<T[]>);
  }
  keys(store: StoreName): Promise<string[]> {
    return done(this.transaction.objectStore(store).getAllKeys() as IDBRequest<string[]>);
  }
  put(store: StoreName, key: string, value: unknown): void {
    this.transaction.objectStore(store).put(value, key);
  }
  clear(store: StoreName): void {
    this.transaction.objectStore(store).clear();
  }
  delete(store: StoreName, key: string): void {
    this.transaction.objectStore(store).delete(key);
  }
}

export class Store {
  private constructor(private readonly database: IDBDatabase) {}

  static async open(name: string): Promise<Store> {
    const request = indexedDB.open(name, 1);
    request.onupgradeneeded = () => {
      for (const store of STORES) request.result.createObjectStore(store);
    };
    const database = await done(request);
    database.onversionchange = () => database.close();
    return new Store(database);
  }

  /** All of it happens, or none; when this returns, it is on disk (durability "strict"). */
  async change<T>(stores: readonly StoreName[], act: (change: Change) => Promise<T>): Promise<T> {
    const transaction = this.database.transaction(stores, "readwrite", { durability: "strict" });
    const committed = new Promise<void>((resolve, reject) => {
      transaction.oncomplete = () => resolve();
      transaction.onabort = () => reject(transaction.error ?? new Error("the change was undone"));
    });
    try {
      const result = await act(new Change(transaction));
      await committed;
      return result;
    } catch (error) {
      committed.catch(() => undefined);
      try {
        transaction.abort();
      } catch {
        // it has ended by itself
      }
      throw error;
    }
  }

  async read<T>(stores: readonly StoreName[], act: (change: Change) => Promise<T>): Promise<T> {
    return act(new Change(this.database.transaction(stores, "readonly")));
  }

  get<T>(store: StoreName, key: string): Promise<T | undefined> {
    return this.read([store], (change) => change.get<T>(store, key));
  }

  put(store: StoreName, key: string, value: unknown): Promise<void> {
    return this.change([store], async (change) => change.put(store, key, value));
  }

  close(): void {
    this.database.close();
  }
}
