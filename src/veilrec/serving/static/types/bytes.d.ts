/** Bytes with a buffer of their own, as WebCrypto takes them. */
export type Bytes = Uint8Array<ArrayBuffer>;
export declare function utf8(text: string): Bytes;
export declare function text(bytes: Uint8Array): string;
export declare function hex(bytes: Uint8Array): string;
export declare function fromHex(digits: string): Bytes;
export declare function fromBase64(encoded: string): Bytes;
export declare function joined(...parts: Uint8Array[]): Bytes;
export declare function same(a: Uint8Array, b: Uint8Array): boolean;
export declare function sha256(bytes: Bytes): Promise<string>;
