"""What a released catalogue costs a client: bytes, and the processor time of one ranking, in Python and under node.

    python -m benchmarks.catalogue runs/veil    # a run of veil; 3,706 films with ML-1M

Also how many of the ten best of the run are among the ten best of its release, whose numbers have 16 bits: the mean
over the first 300 people of the run. Node stands for a browser: the module is the one that browsers load.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from veilrec.client.released import ReleasedCatalogue
from veilrec.runs.model_files import load_model
from veilrec.runs.release import ReleaseOptions, make_release
from veilrec.runs.saved import open_model
from veilrec.serving.app import FOLDER
from veilrec.wire.releases import Release
from veilrec.wire.signing import new_key

_PEOPLE, _K, _LENGTHS, _TIMES = 300, 10, (0, 10, 100), 9
_FILES = ("ranking.safetensors", "items.safetensors")
_NODE = """
import { readFileSync } from "node:fs";
const [module, folder, lengths, times] = process.argv.slice(2);
const { Catalogue } = await import(module);
const read = (name) => new Uint8Array(readFileSync(`${folder}/${name}`));
const spent = () => process.cpuUsage().user / 1000;
let start = spent();
const manifest = JSON.parse(readFileSync(`${folder}/manifest.json`, "utf8"));
const catalogue = Catalogue.read(manifest, read("items.safetensors"), read("ranking.safetensors"));
console.log(`node: reading the release ${(spent() - start).toFixed(0)} ms`);
for (const length of lengths.split(",").map(Number)) {
  const history = Array.from({ length }, (_, at) => (at * 37) % catalogue.size);
  const found = Array.from({ length: Number(times) }, () => {
    start = spent();
    catalogue.scores(history);
    return spent() - start;
  });
  const median = found.slice(1).sort((a, b) => a - b)[Math.floor(found.length / 2)];
  console.log(`node: ${length} items read, the first ranking ${found[0].toFixed(0)} ms, then ${median.toFixed(0)} ms`);
}
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    run = parser.parse_args().run
    with tempfile.TemporaryDirectory() as folder:
        wishes = ReleaseOptions(unprotected=True)
        release = make_release(run, Path(folder) / "release", new_key(Path(folder) / "key"), wishes)
        print(_size(release), flush=True)
        print(_kept(run, release), flush=True)
        print(_timed(release), flush=True)
        if shutil.which("node"):
            _under_node(release, Path(folder) / "measure.mjs")


def _size(release: Release) -> str:
    files = [release.content(name) for name in _FILES]
    plain, zipped = sum(map(len, files)), sum(len(gzip.compress(each, 6)) for each in files)
    items = release.manifest["sizes"]["items"]
    return f"{items:,} items: {plain:,} bytes for a client, {zipped:,} zipped"


def _kept(run: Path, release: Release) -> str:
    files, clients = load_model(run / "model"), open_model(run).clients
    histories = clients.used.take(np.arange(min(_PEOPLE, len(clients.used)), dtype=np.int64))
    exact = files.ranker.model(files.weights, {}, histories)
    short, kept = ReleasedCatalogue(release), []
    for person in range(len(histories)):
        lists = []
        for scores in (exact.score_all(np.array([person]))[0], short.scores(histories.row(person))):
            scores[histories.row(person)] = -np.inf
            lists.append(set(np.argsort(-scores, kind="stable")[:_K].tolist()))
        kept.append(len(lists[0] & lists[1]) / _K)
    return f"16 bits: {np.mean(kept):.4f} of the ten best are kept, mean of {len(kept)} people"


def _timed(release: Release) -> str:
    model, lines = ReleasedCatalogue(release), []
    for length in _LENGTHS:
        history = np.array([(at * 37) % model.n_items for at in range(length)], np.int32)
        spent = []
        for _ in range(_TIMES):
            start = time.process_time()
            model.scores(history)
            spent.append(1000 * (time.process_time() - start))
        lines.append(f"python: {length} items read, {np.median(spent):.0f} ms")
    return "\n".join(lines)


def _under_node(release: Release, script: Path) -> None:
    script.write_text(_NODE)
    lengths = ",".join(map(str, _LENGTHS))
    module = (FOLDER / "veilrec.js").as_uri()
    subprocess.run(["node", str(script), module, str(release.folder), lengths, str(_TIMES)], check=True)


if __name__ == "__main__":
    main()
