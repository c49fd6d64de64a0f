import type { Tensors } from "./safetensors.js";
export interface Program {
    readonly user: Layer;
    readonly empty: string | null;
    readonly dim: number;
    readonly longest: number;
    readonly attention: boolean;
    readonly ranks_with: "whole" | "interests";
}
export interface Layer {
    readonly op: string;
    readonly of?: Layer | readonly Layer[];
    readonly start?: Layer | null;
    readonly weights?: string;
    readonly count?: number;
    readonly heads?: number;
    readonly parts?: readonly number[];
}
type Vector = Float64Array;
/** A program with its weights: a user vector of any history, also of an empty one. */
export declare class UserEncoder {
    readonly program: Program;
    private readonly weights;
    constructor(program: Program, file: Tensors);
    /** The clicks' vectors, oldest first -> [dim]; only the latest ones count. */
    user(clicks: readonly ArrayLike<number>[]): Vector;
    /** Basis vectors [B, dim], one after another; null where the model has none. */
    get basis(): Vector | null;
    private weight;
    private only;
    private rows;
    private vector;
    private parts;
    private selfAttention;
    private attend;
    private gru;
    private publicHead;
}
export {};
