import { type Tensors } from "./safetensors.js";
import { Content } from "./veil_content.js";
import { type Places } from "./veil_places.js";
/** What of a history is looked at, and how. */
export interface Reading {
    readonly recency: readonly number[];
    readonly taste_recency: readonly number[];
    readonly popularity_recency: readonly number[];
    readonly place_recency: number;
    readonly place_passes?: number;
    readonly latest: number;
    readonly targets: number;
    readonly negatives: number;
}
export interface RankingProgram {
    readonly ranks: string;
    readonly formulas: number;
    readonly reading: Reading;
    readonly caution: number;
    readonly draws_seed: number;
}
/** How everybody's numbers should move, by the own examples: what a client of a federation has to say. */
export interface Gradients {
    readonly weights: Float64Array;
    readonly map: Float64Array;
}
/** What a model of a federation says, before anything of it is released. */
export interface LearntSoFar {
    readonly popularity: Float64Array;
    readonly weights: Float64Array;
    readonly map: Float64Array;
    readonly places: Places;
}
export declare class VeilRanking {
    private readonly content;
    private readonly program;
    private readonly whitening;
    private readonly popularity;
    private readonly weights;
    private readonly map;
    private readonly places;
    private readonly draws;
    private readonly basis;
    private readonly width;
    private readonly among;
    private readonly known;
    private readonly mean;
    private readonly decays;
    private readonly tasteDecays;
    private readonly popularityDecays;
    private constructor();
    static read(program: RankingProgram, file: Tensors, count: number): VeilRanking;
    /** What a client of a federation learns with: public content, and the model of a round. */
    static learning(content: Content, reading: Reading, whitening: Float64Array, learnt: LearntSoFar, draws: bigint): VeilRanking;
    /** The mean direction in which the loss of the own latest items falls (client/veil.py). */
    gradients(history: ArrayLike<number>): Gradients;
    /** How many items of a history the own weights are fitted to. */
    fitted(length: number): number;
    /** Of every item, after a history (numbers of items, the latest last). */
    scores(history: ArrayLike<number>): Float64Array;
    /** How alike the content of two items is: the cosine of their places in content space. */
    alike(one: number, other: number): number;
    /** Everybody's weights, moved by Newton steps on the own latest items; a short history moves them little. */
    ownWeights(history: ArrayLike<number>): Float64Array;
    /** One Newton step: the curvature is that of the softmax over each target's rivals, held by the caution. */
    private step;
    private examples;
    /** Targets, each followed by items that are not in the history, as far as some are found: [ends, 1 + negatives]. */
    private unused;
    /** t, 2 ln(e^t + 5), and t above that of the mean item. */
    private forms;
    /** How popular the items before positions were, at every recency scale: [ends, scales]. */
    private context;
    /** Popularity features of an item whose forms stand at a place of `forms`, in the context of a target. */
    private describe;
    /** Where contexts lie among items, at every scale, after a constant: [ends, tastes]. */
    private tastes;
    /** What the taste of a target looks for among items: [width]. */
    private lookedFor;
    /** Rows of the basis of the targets, without what this history itself has added to the sums: [ends, width]. */
    private withoutOwn;
}
