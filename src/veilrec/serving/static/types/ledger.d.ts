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
import { type Budget, type Promised } from "./budget.js";
import type { Store } from "./store.js";
export interface Message {
    readonly bytes: Bytes;
    readonly fresh: boolean;
}
export interface AccountReport {
    readonly unit: string;
    readonly adjacency: string;
    readonly messages: number;
    readonly uncovered: number;
    readonly caveats: readonly string[];
    readonly period: Spent;
    readonly lifetime: Spent;
}
export interface Spent {
    readonly share: number;
    readonly spent: string;
    readonly atMost: string;
}
export declare class Ledger {
    private readonly store;
    private constructor();
    /** Go on with the ledger of this browser; the budgets are those that it was started with. */
    static open(store: Store, budgets: readonly Budget[]): Promise<Ledger>;
    /**
     * The message of a key for this period: drawn and charged the first time, then the same and free. With `again` one
     * more is drawn and charged, which only a person may ask for.
     */
    message(key: string, period: string, promise: Promised, draw: () => Bytes, again?: boolean): Promise<Message>;
    report(period: string): Promise<AccountReport[]>;
    private record;
}
