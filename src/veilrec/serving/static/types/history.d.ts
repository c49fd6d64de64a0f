import type { Store } from "./store.js";
export interface Click {
    readonly id: string;
    readonly title: string;
    readonly category: string;
    readonly model: string;
    readonly vector: Float64Array;
}
export declare class History {
    private readonly store;
    constructor(store: Store);
    /** Oldest first; the same news twice counts once, as the latest. */
    clicks(): Promise<Click[]>;
    /** One more click; the oldest are dropped where there are too many. */
    add(click: Click): Promise<void>;
    /** Clicks and key are gone; copies of the encrypted bytes that a disk may still hold are then noise. */
    forget(): Promise<void>;
    private sealed;
    private key;
}
