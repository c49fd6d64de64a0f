/** The only door out: every request goes through here, and is written down with all that it carries. */
import { hex, utf8, type Bytes } from "./bytes.js";
import { BadInput } from "./errors.js";
import type { Store } from "./store.js";

const KEPT = 200; // requests in the journal
const PATIENCE_MS = 20_000;

export interface Entry {
  readonly number: number;
  readonly at: string;
  readonly method: "GET" | "POST";
  readonly path: string;
  readonly type: string; // of the body; empty without one
  readonly body: string; // hexadecimal
  readonly what: string; // in words
  readonly cost: string; // the full line of its guarantee
  readonly charged: boolean; // whether it was charged for this request, or was free
  readonly status: number; // 0: there was no answer
  readonly received: number; // bytes of the answer
  readonly times?: number; // how often it was sent so, one after the other, where only a number used once differs
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
  readonly repeats?: boolean; // asked again and again: written down once, with how often
  readonly most: number; // bytes of an answer that is read
}

/** There was no answer: the server is away, or refuses. */
export class NoAnswer extends Error {
  override name = "NoAnswer";
  constructor(
    message: string,
    readonly status: number,
    readonly charged = "", // the guarantee that the ledger was charged for this request; empty if it was free
  ) {
    super(message);
  }
  /** Whether to ask again later: the server is gone, busy, or has only just started. */
  get away(): boolean {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

async function bounded(response: Response, most: number): Promise<Bytes> {
  const reader = response.body?.getReader();
  const parts: Uint8Array[] = [];
  let size = 0;
  while (reader !== undefined) {
    const { done, value } = await reader.read();
    if (done) break;
    size += value.length;
    if (size > most) {
      await reader.cancel();
      throw new BadInput(`the server sends more than ${most} bytes: nothing of it is used`);
    }
    parts.push(value);
  }
  const all = new Uint8Array(size);
  parts.reduce((at, part) => (all.set(part, at), at + part.length), 0);
  return all;
}

export class Outbox {
  constructor(
    private readonly store: Store,
    private readonly server: string,
    private readonly onEntry: () => void = () => undefined,
  ) {}

  async send(request: Outgoing): Promise<Bytes> {
    let [status, received] = [0, 0];
    const { method, path, type = "", body, what, cost, charged = false, headers = {}, repeats = false } = request;
    const paid = charged ? cost : "";
    try {
      const response = await fetch(this.server + path, {
        method,
        credentials: "omit",
        referrerPolicy: "no-referrer",
        redirect: "error",
        signal: AbortSignal.timeout(PATIENCE_MS),
        ...(body === undefined ? {} : { body, headers: { ...headers, "Content-Type": type } }),
      });
      status = response.status;
      const content = await bounded(response, request.most);
      received = content.length;
      if (!response.ok) throw new NoAnswer(`the server answers ${path} with ${status}`, status, paid);
      return content;
    } catch (error) {
      if (error instanceof NoAnswer || error instanceof BadInput) throw error;
      throw new NoAnswer(`the server does not answer ${path}`, 0, paid);
    } finally {
      const at = new Date().toISOString();
      const asked = this.server + path;
      await this.note({ at, method, path: asked, type, body: hex(body ?? utf8("")), what, cost, charged, status, received }, repeats);
    }
  }

  /** Newest first. */
  async journal(): Promise<Entry[]> {
    const entries = await this.store.read(["journal"], (change) => change.all<Entry>("journal"));
    return entries.sort((a, b) => b.number - a.number);
  }

  private async note(entry: Omit<Entry, "number">, repeats: boolean): Promise<void> {
    await this.store.change(["journal", "settings"], async (change) => {
      const number = ((await change.get<number>("settings", "requests")) ?? 0) + 1;
      const last = repeats ? await change.get<Entry>("journal", String(number - 1)) : undefined;
      if (last !== undefined && last.what === entry.what && last.status === entry.status) {
        change.put("journal", String(number - 1), { ...entry, number: number - 1, times: (last.times ?? 1) + 1 } satisfies Entry);
        return;
      }
      change.put("settings", "requests", number);
      change.put("journal", String(number), { ...entry, number } satisfies Entry);
      change.delete("journal", String(number - KEPT));
    });
    this.onEntry();
  }
}
