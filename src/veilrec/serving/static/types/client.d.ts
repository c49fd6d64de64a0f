import type { Budget } from "./budget.js";
import { type Guarantee } from "./guarantee.js";
import { type Click } from "./history.js";
import { TakingPart } from "./federation.js";
import { type AccountReport } from "./ledger.js";
import { type Entry } from "./outbox.js";
import { type Manifest, type Offer } from "./release.js";
import { type Source } from "./samplers.js";
export declare const NONE_SENT = "none-sent";
export declare const NOT_PERSONAL = "not-personal";
/** As the client in Python: of one period (a version of the release) and of a lifetime, for all and for one click. */
export declare const BUDGETS: readonly Budget[];
export interface Options {
    readonly server?: string;
    readonly database?: string;
    readonly budgets?: readonly Budget[];
    readonly source?: Source;
    readonly onRequest?: () => void;
}
export interface Mode {
    readonly id: string;
    readonly offer: Offer | null;
    readonly statement: Guarantee;
    readonly line: string;
    readonly bytes: number;
}
export interface Story {
    readonly id: string;
    readonly title: string;
    readonly category: string;
    readonly because: string;
}
export interface Front {
    readonly stories: readonly Story[];
    readonly others: readonly Story[];
    readonly mode: string;
    readonly personal: boolean;
    readonly notice: string;
    readonly clicks: number;
    readonly restsOn: string;
}
export interface How {
    readonly ask?: boolean;
    readonly again?: boolean;
    readonly retried?: boolean;
}
export declare class Client {
    private readonly store;
    private readonly outbox;
    private readonly ledger;
    private readonly history;
    private readonly source;
    private loaded;
    private pools;
    private shown;
    /** Learning with others: off until a person joins, by an invitation. */
    readonly federation: TakingPart;
    private constructor();
    static open(options?: Options): Promise<Client>;
    /** The verified release: from the server, or, where that is away, the one that was verified before. */
    release(): Promise<Manifest>;
    /** What a person has to know of the last day of the release; empty while that is far away. */
    get warning(): string;
    /** Trust another key from now on: only ever by a person's own decision. What was spent stays spent. */
    trust(key: string): Promise<void>;
    private load;
    private file;
    /** The ways to get a list: send nothing, each private query that the release offers, and nothing personal. */
    modes(): Promise<Mode[]>;
    private get ranksHere();
    /** Something was read. Nothing is sent, now or later, that says what. */
    read(story: Story): Promise<void>;
    /** What was read, oldest first. */
    clicks(): Promise<Click[]>;
    /** Forget what was read, completely. What left before has left, and what it cost stays in the ledger. */
    forget(): Promise<void>;
    /** Every request, newest first. */
    journal(): Promise<Entry[]>;
    /** What was spent, in this period and ever. */
    accounts(): Promise<AccountReport[]>;
    /** The mode that was chosen last. */
    mode(): Promise<string>;
    setMode(mode: string): Promise<void>;
    /**
     * The front page in a mode. `ask`: fetch news, otherwise those at hand are ranked again (after a click). `again`: draw
     * and pay for one more query; only ever by a person's own decision.
     */
    front(mode: string, count: number, how?: How): Promise<Front>;
    private ranked;
    /** The list of a catalogue, all of which is here: `ask` looks for a newer release, and nothing else is ever fetched. */
    private ofCatalogue;
    /** Clicks with a vector of this model; after a new model, those whose news are at hand. */
    private known;
    private person;
    private scores;
    /** The order for somebody without a history; that of the pool where the release says nothing of it. */
    private forAnybody;
    private fetched;
    /** Send the query of this period: charged on disk first, and only then on its way. */
    private asked;
    private kept;
}
