/** The form of a manifest, as `wire/releases.py` has it: one way to write it, and a shape for every field. */
import { BadRelease } from "./errors.js";
import { isGuarantee } from "./guarantee.js";
import { KINDS } from "./queries.js";
import type { Manifest } from "./release.js";

export const CLIENT = 2; // the newest `minimum_client` that this code satisfies
const MOST_FILES = 64;
const DEEPEST = 64; // objects and lists inside of each other

/** A kind of value, the words that are allowed, a pattern, a list of one shape, or fields ("?": optional; "*": further). */
type Shape = string | readonly string[] | RegExp | { readonly each: Shape } | { readonly fields: Readonly<Record<string, Shape>> };

const MAP: Shape = { fields: { "*": "anything" } };
const TEXTS: Shape = { each: "text" };
const OFFER: Shape = {
  fields: {
    ...{ mode: "text", kind: KINDS, size: "count", "how?": "text", "pool?": "count", "slots?": "count" },
    ...{ "epsilon?": "number", "delta?": "number", "scale?": "number", "sigma?": "number", "clip?": "number" },
    ...{ "unit?": "text", "adjacency?": "text", "noise?": "text", "guarantee?": "guarantee", "*": "anything" },
  },
};
const TENSOR: Shape = { fields: { dtype: "text", shape: { each: "count" } } };
const FIELDS: Readonly<Record<string, Shape>> = {
  ...{ format: "count", minimum_client: "count", name: /^[a-z0-9][a-z0-9._-]{0,99}$/, version: "count" },
  ...{ family: ["news", "factors", "catalogue", "ranker"], created: "moment", expires: "moment", made_by: "text" },
  ...{ method: "text", protected: "flag", why_unprotected: TEXTS, guarantee: "guarantee" },
  sizes: { fields: { items: "count", dim: "count", interests: "count", longest: "count" } },
  ...{ encoder: "program", offers: { each: OFFER }, data: { fields: { "*": "text" } }, figures: MAP },
  files: { fields: { "*": { fields: { bytes: "count", sha256: /^[0-9a-f]{64}$/, "tensors?": { fields: { "*": TENSOR } } } } } },
};

function isMoment(value: unknown): boolean {
  if (typeof value !== "string" || !/^[2-9]\d{3}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/.test(value)) return false;
  const moment = new Date(value);
  return !Number.isNaN(moment.getTime()) && moment.toISOString() === value.replace("Z", ".000Z");
}

const IS: Readonly<Record<string, (value: unknown) => boolean>> = {
  anything: () => true,
  flag: (value) => typeof value === "boolean",
  text: (value) => typeof value === "string" && !/[\x00-\x1f\x7f]/.test(value),
  count: (value) => Number.isSafeInteger(value) && (value as number) >= 0,
  number: (value) => Number.isFinite(value) && (value as number) >= 0,
  moment: isMoment,
  program: (value) => value === null || fits(value, MAP),
  guarantee: isGuarantee,
};

function fits(value: unknown, shape: Shape): boolean {
  if (typeof shape === "string") return (IS[shape] as (value: unknown) => boolean)(value);
  if (shape instanceof RegExp) return typeof value === "string" && shape.test(value);
  if ("each" in shape) return Array.isArray(value) && value.every((each) => fits(each, shape.each));
  if (!("fields" in shape)) return typeof value === "string" && shape.includes(value);
  if (typeof value !== "object" || value === null || Array.isArray(value)) return false;
  const fields = shape.fields;
  const known = new Set(Object.keys(fields).map((name) => name.replace("?", "")));
  const own = (name: string): unknown => (Object.hasOwn(value, name) ? (value as Record<string, unknown>)[name] : undefined);
  for (const [name, inner] of Object.entries(fields)) {
    const found = own(name.replace("?", ""));
    const missing = name.endsWith("?") ? (found ?? null) === null : name === "*";
    if (!missing && (found === undefined || !fits(found, inner))) return false;
  }
  const rest = fields["*"];
  return Object.keys(value).every((name) => (known.has(name) && name !== "*") || (rest !== undefined && fits(own(name), rest)));
}

/** As Python writes a number that is not whole. */
function decimal(value: number): string {
  const [digits, exponent] = value.toExponential().split("e") as [string, string];
  const power = Number(exponent);
  if (power < -4 || power >= 16) return `${digits}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
  if (Object.is(value, -0)) return "-0.0";
  return Number.isInteger(value) ? `${value}.0` : String(value);
}

/** JSON as it is signed, every number in it as 0. */
function canonical(value: unknown, depth = 0): string {
  if (depth > DEEPEST) throw new RangeError("too deep");
  if (typeof value === "number") return "0";
  if (Array.isArray(value)) return `[${value.map((each) => canonical(each, depth + 1)).join(",")}]`;
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  const fields = value as Readonly<Record<string, unknown>>;
  const written = Object.keys(fields).sort().map((name) => `${JSON.stringify(name)}:${canonical(fields[name], depth + 1)}`);
  return `{${written.join(",")}}`;
}

/** A text with every number as 0 if it is written as Python writes it, and with every one that has decimals as 0.5. */
function withoutNumbers(content: string): [string, string] {
  const replaced = (act: (number: string) => string): string =>
    content.replace(/("(?:[^"\\]|\\.)*")|(-?\d[\d.eE+-]*)/g, (_, quoted?: string, number?: string) => {
      if (quoted !== undefined) return /^(?:[^\\]|\\[^u]|\\u[^d])*$/.test(quoted) ? quoted : "?"; // halves of letters
      return act(number as string);
    });
  const isPlain = (number: string, value = Number(number)): boolean =>
    Number.isFinite(value) && (number === decimal(value) || (Number.isSafeInteger(value) && number === String(value)));
  return [replaced((number) => (isPlain(number) ? "0" : "?")), replaced((number) => (/[.e]/.test(number) ? "0.5" : number))];
}

/** The fields of a manifest whose signature was checked. */
export function parseManifest(content: string): Manifest {
  let value: unknown;
  let typed: unknown; // where 3.0 is no whole number
  let same = false;
  try {
    value = JSON.parse(content);
    const [plain, halves] = withoutNumbers(content);
    same = plain === canonical(value); // fields sorted, each once, no spaces
    typed = JSON.parse(halves);
  } catch {
    throw new BadRelease("the manifest of the release is no JSON");
  }
  if (!same) throw new BadRelease("the manifest of the release is not written in the one way that is signed");
  if (typeof value !== "object" || value === null || (value as Partial<Manifest>).format !== 1)
    throw new BadRelease("the release has another format than 1: reload the page for a newer client");
  const manifest = value as Manifest;
  if (!Number.isSafeInteger(manifest.minimum_client) || manifest.minimum_client > CLIENT)
    throw new BadRelease(`the release is for clients from ${manifest.minimum_client}, this is ${CLIENT}: reload the page`);
  if (!Object.hasOwn(manifest, "expires"))
    throw new BadRelease("the release is of an older veilrec and says not when it expires: it has to be made again");
  const odd = Object.entries(FIELDS).find(([name, shape]) => !fits(value, { fields: { [name]: shape, "*": "anything" } }))?.[0];
  if (odd !== undefined || !fits(value, { fields: FIELDS }) || !fits(typed, { fields: FIELDS }))
    throw new BadRelease(`the manifest of the release is not as it should be: look at ${odd ?? "its fields"}`);
  if (manifest.version < 1 || Date.parse(manifest.created) >= Date.parse(manifest.expires))
    throw new BadRelease("the release has version 0, or expires before it was made");
  const files = Object.entries(manifest.files);
  if (files.length > MOST_FILES) throw new BadRelease(`the release has ${files.length} files: at most ${MOST_FILES} are read`);
  for (const [path, entry] of files) {
    const whole = "tensors" in entry === path.endsWith(".safetensors") && !["manifest.json", "manifest.sig", "keys.json"].includes(path);
    if (!whole || !/^(model\/)?[A-Za-z0-9][A-Za-z0-9._-]{0,79}$/.test(path))
      throw new BadRelease(`the manifest of the release names ${path.slice(0, 60)} in a way that is not allowed`);
  }
  return manifest;
}
