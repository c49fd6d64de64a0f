/** A catalogue that is ranked here: its items, and how they stand after a history that stays. */
import type { Bytes } from "./bytes.js";
import { BadRelease } from "./errors.js";
import type { Manifest } from "./release.js";
import { integers, readSafetensors, texts } from "./safetensors.js";
import { VeilRanking } from "./veil.js";

export const CATALOGUE_FILES = ["items.safetensors", "ranking.safetensors"];
const MOST = 1_000_000; // items
const ALIKE = 0.3; // from which on two items are shown as alike

export class Catalogue {
  private readonly places: ReadonlyMap<string, number>;
  private constructor(
    readonly ids: readonly string[],
    readonly titles: readonly string[],
    private readonly names: readonly string[],
    private readonly category: ArrayLike<number>,
    private readonly ranking: VeilRanking,
  ) {
    this.places = new Map(ids.map((id, at) => [id, at]));
  }

  static read(manifest: Manifest, items: Bytes, ranking: Bytes): Catalogue {
    const program = manifest.encoder;
    if (program === null || !("ranks" in program)) throw new BadRelease("the release does not say how its catalogue is ranked");
    const file = readSafetensors(items);
    const [ids, titles, names] = [texts(file, "ids"), texts(file, "titles"), texts(file, "categories")];
    if (ids.length > MOST || ids.length !== manifest.sizes.items || titles.length !== ids.length)
      throw new BadRelease(`the release has ${ids.length} ids and ${titles.length} titles of ${manifest.sizes.items} items`);
    const category = integers(file, "category", [ids.length]);
    return new Catalogue(ids, titles, names, category, VeilRanking.read(program, readSafetensors(ranking), ids.length));
  }

  get size(): number {
    return this.ids.length;
  }

  categoryOf(at: number): string {
    return this.names[this.category[at] as number] ?? "";
  }

  /** Where items of some ids are, in the same order; those that the catalogue does not know are left out. */
  known(ids: readonly string[]): number[] {
    return ids.map((id) => this.places.get(id)).filter((at) => at !== undefined);
  }

  /** Of every item, after these, the latest last. */
  scores(history: readonly number[]): Float64Array {
    return this.ranking.scores(history);
  }

  /** The one of some items whose content an item is most like, if it is like any. */
  likest(at: number, others: readonly number[]): number | null {
    let [found, most]: [number | null, number] = [null, ALIKE];
    for (const other of others) {
      const near = this.ranking.alike(at, other);
      if (near > most) [found, most] = [other, near];
    }
    return found;
  }

  /** What a list rests on, for people. */
  restsOn(history: readonly number[]): string {
    if (history.length === 0) return "Ranked by how popular things are and by their content, the same for everybody.";
    const fitted = this.ranking.fitted(history.length);
    const weights = fitted > 0 ? `weights fitted to the latest ${fitted} of them` : "the weights of everybody";
    return `Ranked in this browser by ${history.length === 1 ? "1 item" : `${history.length} items in their order`}, with ${weights}.`;
  }
}
