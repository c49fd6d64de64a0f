/**
 * What this browser has spent of its owner's privacy, and the only way in which a message may leave it.
 *
 * - A message is handed out only after its charge is on disk. A crash before that costs nothing, and nothing has left.
 * - What was spent never falls, and no budget is raised: not by forgetting the history, not by another tab.
 * - A message is drawn once per period (= version of a release) and then repeated for free. It does not follow the
 *   history: a message that changed would say that the history did.
 * - Removing the site's data in the browser's settings removes the ledger, too, and nobody here can see that.
 */
import type { Bytes } from "./bytes.js";
import { charged, emptyLedger, NOTHING, spent, type Budget, type Cost, type LedgerRecord, type Promised } from "./budget.js";
import { BadInput } from "./errors.js";
import { line } from "./guarantee.js";
import type { Store } from "./store.js";

export interface Message {
  readonly bytes: Bytes;
  readonly fresh: boolean; // whether it was charged now
}

interface Memo {
  readonly bytes: Bytes;
  readonly draw: number;
}

export interface AccountReport {
  readonly unit: string;
  readonly adjacency: string;
  readonly messages: number;
  readonly uncovered: number; // messages that promise nothing for this unit: no line states anything after one
  readonly caveats: readonly string[];
  readonly period: Spent;
  readonly lifetime: Spent;
}

export interface Spent {
  readonly share: number; // of the budget, from 0 to 1
  readonly spent: string; // full lines
  readonly atMost: string;
}

export class Ledger {
  private constructor(private readonly store: Store) {}

  /** Go on with the ledger of this browser; the budgets are those that it was started with. */
  static async open(store: Store, budgets: readonly Budget[]): Promise<Ledger> {
    await store.change(["ledger"], async (change) => {
      const record = await change.get<LedgerRecord>("ledger", "record");
      if (record === undefined) change.put("ledger", "record", emptyLedger(budgets));
      else if (record.format !== 1) throw new BadInput("the ledger is of a newer client: reload the page; nothing is sent");
    });
    return new Ledger(store);
  }

  /**
   * The message of a key for this period: drawn and charged the first time, then the same and free. With `again` one
   * more is drawn and charged, which only a person may ask for.
   */
  async message(key: string, period: string, promise: Promised, draw: () => Bytes, again = false): Promise<Message> {
    const known = await this.store.get<Memo>("messages", key);
    if (known !== undefined && !again) return { bytes: known.bytes, fresh: false };
    charged(await this.record(), period, promise); // nothing is drawn where it would not fit
    const bytes = draw();
    return this.store.change(["ledger", "messages"], async (change) => {
      const other = await change.get<Memo>("messages", key); // another tab may have been faster
      if (other !== undefined && other.draw !== known?.draw) return { bytes: other.bytes, fresh: false };
      const record = await change.get<LedgerRecord>("ledger", "record");
      if (record === undefined) throw new BadInput("the ledger is gone: nothing is sent; reload the page");
      change.put("ledger", "record", charged(record, period, promise));
      change.put("messages", key, { bytes, draw: (other?.draw ?? 0) + 1 } satisfies Memo);
      return { bytes, fresh: true };
    });
  }

  async report(period: string): Promise<AccountReport[]> {
    return (await this.record()).accounts.map((account) => {
      const { budget, messages, uncovered } = account;
      const statement = spent(account);
      const of = (cost: Cost, limit: Cost, scope: string): Spent => ({
        share: Math.min(1, Math.max(cost.epsilon / limit.epsilon, cost.delta / limit.delta)),
        spent: line(statement.basis === "none" ? statement : { ...statement, ...cost, scope }),
        atMost: line({ ...statement, ...budget, basis: "proven", ...limit, scope, trust: "nobody" }),
      });
      return {
        unit: budget.unit,
        adjacency: budget.adjacency,
        messages,
        uncovered,
        caveats: statement.caveats,
        period: of(account.periods[period] ?? NOTHING, budget.period, "this period"),
        lifetime: of(account.lifetime, budget.lifetime, "lifetime"),
      };
    });
  }

  private async record(): Promise<LedgerRecord> {
    const record = await this.store.get<LedgerRecord>("ledger", "record");
    if (record === undefined) throw new BadInput("the ledger is gone: nothing is sent; reload the page");
    return record;
  }
}
