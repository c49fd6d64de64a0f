import type { Manifest } from "./release.js";
export declare const CLIENT = 2;
/** The fields of a manifest whose signature was checked. */
export declare function parseManifest(content: string): Manifest;
