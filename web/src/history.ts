/** What was read: encrypted in IndexedDB with a key that no script can read out, and never sent anywhere. */
import { fromBase64, text, utf8, type Bytes } from "./bytes.js";
import type { Store } from "./store.js";

const BOUND_TO = utf8("veilrec history 1");
const MOST = 2000;

export interface Click {
  readonly id: string;
  readonly title: string;
  readonly category: string;
  readonly model: string; // which encoder the vector is for
  readonly vector: Float64Array; // as it was in the pool; empty where there was none
}

interface Sealed {
  readonly iv: Bytes;
  readonly data: ArrayBuffer;
}

/** A key that is in order as a text. */
const place = (number: number): string => String(number).padStart(12, "0");

function pack(click: Click): Bytes {
  const vector = btoa(String.fromCharCode(...new Uint8Array(Float32Array.from(click.vector).buffer)));
  return utf8(JSON.stringify({ ...click, vector }));
}

function unpack(content: Uint8Array): Click {
  const fields = JSON.parse(text(content)) as Omit<Click, "vector"> & { vector: string };
  return { ...fields, vector: Float64Array.from(new Float32Array(fromBase64(fields.vector).buffer)) };
}

export class History {
  constructor(private readonly store: Store) {}

  /** Oldest first; the same news twice counts once, as the latest. */
  async clicks(): Promise<Click[]> {
    const key = await this.store.get<CryptoKey>("keys", "history");
    if (key === undefined) return [];
    const sealed = await this.store.read(["history"], (change) => change.all<Sealed>("history")); // by key: in order
    const found = new Map<string, Click>();
    for (const { iv, data } of sealed) {
      try {
        const plain = await crypto.subtle.decrypt({ name: "AES-GCM", iv, additionalData: BOUND_TO }, key, data);
        const click = unpack(new Uint8Array(plain));
        found.delete(click.id);
        found.set(click.id, click);
      } catch {
        // altered, or of a key that was forgotten: it is no history any more
      }
    }
    return [...found.values()];
  }

  /** One more click; the oldest are dropped where there are too many. */
  async add(click: Click): Promise<void> {
    const record = await this.sealed(click, await this.key());
    await this.store.change(["history"], async (change) => {
      const numbers = (await change.keys("history")).map(Number);
      change.put("history", place((numbers.at(-1) ?? 0) + 1), record);
      for (const old of numbers.slice(0, Math.max(0, numbers.length + 1 - MOST))) change.delete("history", place(old));
    });
  }

  /** Clicks and key are gone; copies of the encrypted bytes that a disk may still hold are then noise. */
  async forget(): Promise<void> {
    await this.store.change(["history", "keys"], async (change) => {
      change.clear("history");
      change.clear("keys");
    });
  }

  private async sealed(click: Click, key: CryptoKey): Promise<Sealed> {
    const iv = crypto.getRandomValues(new Uint8Array(12));
    const data = await crypto.subtle.encrypt({ name: "AES-GCM", iv, additionalData: BOUND_TO }, key, pack(click));
    return { iv, data };
  }

  private async key(): Promise<CryptoKey> {
    const made = await crypto.subtle.generateKey({ name: "AES-GCM", length: 256 }, false, ["encrypt", "decrypt"]);
    return this.store.change(["keys"], async (change) => {
      const known = await change.get<CryptoKey>("keys", "history"); // of another tab, or of earlier
      if (known === undefined) change.put("keys", "history", made);
      return known ?? made;
    });
  }
}
