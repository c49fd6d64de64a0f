// What both a browser and node check of the built module against the vectors that the Python implementation made.
// `allChecks(veilrec, vectors)` gives [name, function] pairs; a function throws where something is off.
export function allChecks(veilrec, vectors) {
  const found = [];
  const check = (name, act) => found.push([name, act]);
  const fail = (why) => {
    throw new Error(why);
  };
  const equal = (got, expected, what) => {
    if (JSON.stringify(got) !== JSON.stringify(expected))
      fail(`${what}: ${JSON.stringify(got)?.slice(0, 200)} is not ${JSON.stringify(expected)?.slice(0, 200)}`);
  };
  const close = (got, expected, most, what) => {
    if (got.length !== expected.length) fail(`${what}: ${got.length} numbers, not ${expected.length}`);
    for (let at = 0; at < expected.length; at++)
      if (!(Math.abs(got[at] - expected[at]) <= most)) fail(`${what}: ${got[at]} is not ${expected[at]} at ${at}`);
  };
  const refused = async (act, what, error = veilrec.BadInput) => {
    try {
      await act();
    } catch (thrown) {
      if (thrown instanceof error) return thrown;
      fail(`${what}: threw ${thrown}`);
    }
    return fail(`${what}: was taken`);
  };
  const bytes = (text) => veilrec.fromBase64(text);
  const wordsIn = (text) => new BigUint64Array(bytes(text).buffer);

  /** Exactly these words; asking for more than Python took is an error. */
  class Given {
    constructor(words) {
      this.all = words;
      this.at = 0;
    }
    words(count) {
      if (this.at + count > this.all.length) fail("more words were taken than in Python");
      this.at += count;
      return this.all.slice(this.at - count, this.at);
    }
    used() {
      if (this.at !== this.all.length) fail("fewer words were taken than in Python");
    }
  }

  /** The stream of a key: AES-256 in counter mode over zeros, as `SeededSource` reads it. */
  async function stream(key, count) {
    const algorithm = { name: "AES-CTR", counter: new Uint8Array(16), length: 64 };
    const imported = await crypto.subtle.importKey("raw", veilrec.fromHex(key), "AES-CTR", false, ["encrypt"]);
    return new Given(new BigUint64Array(await crypto.subtle.encrypt(algorithm, imported, new Uint8Array(8 * count))));
  }

  function chiSquare(counts, chances, most, what) {
    const total = counts.reduce((a, b) => a + b, 0);
    const statistic = chances.reduce((sum, p, at) => sum + (counts[at] - p * total) ** 2 / (p * total), 0);
    if (!(statistic <= most)) fail(`${what}: chi-square ${statistic} is more than ${most}`);
  }

  const draw = { gaussian: veilrec.latticeGaussian, laplace: veilrec.latticeLaplace };
  const binned = (draws, edges) => {
    const counts = new Array(edges.length + 1).fill(0);
    for (const each of draws) counts[edges.filter((edge) => each >= edge).length]++;
    return counts;
  };

  for (const { name, law, words, draws } of vectors.samplers.cases)
    check(`noise: ${name}`, () => {
      const source = new Given(wordsIn(words));
      equal(draw[law](source, draws.length), draws, name);
      source.used();
    });
  for (const { law, key, count, digest, edges, chances, most } of vectors.samplers.bulk) {
    check(`noise: ${count} of the ${law} stream are Python's, and of its law`, async () => {
      const draws = draw[law](await stream(key, 6 * count + 1000), count);
      equal(await veilrec.sha256(veilrec.utf8(draws.join("\n"))), digest, "digest");
      chiSquare(binned(draws, edges), chances, most, law);
    });
    // False alarm: one in a million runs.
    check(`noise: ${law} of this machine's own generator is of its law`, () =>
      chiSquare(binned(draw[law](new veilrec.SecureSource(), count), edges), chances, most, law));
  }
  for (const { truth, categories, epsilon, words, told } of vectors.responses.cases)
    check(`response: ${truth} of ${categories} at ${epsilon}`, () => {
      const source = new Given(wordsIn(words));
      equal(veilrec.karyResponse(truth, categories, epsilon, source), told, "told");
      source.used();
    });
  check("response: many", async () => {
    const { key, truth, categories, epsilon, count, counts, chances, most } = vectors.responses.bulk;
    const tally = (source) => {
      const seen = new Array(categories).fill(0);
      for (let at = 0; at < count; at++) seen[veilrec.karyResponse(truth, categories, epsilon, source)]++;
      return seen;
    };
    equal(tally(await stream(key, 2 * count)), counts, "counts");
    chiSquare(counts, chances, most, "of the stream");
    chiSquare(tally(new veilrec.SecureSource()), chances, most, "of this machine"); // one in a million
  });

  vectors.attention.cases.forEach(({ alpha, offer, clipped, words, query }, number) =>
    check(`query: ${offer.mode} ${number}`, () => {
      const source = new Given(wordsIn(words));
      if (clipped !== undefined) close(veilrec.clippedAttention(alpha, offer.clip), clipped, 1e-15, "clipped");
      const person = { user: new Float64Array(3), alpha, clicks: [] };
      const { epsilon, delta, unit, adjacency } = offer;
      equal(veilrec.promiseOf(offer), { epsilon, delta, unit, adjacency }, "promise");
      equal(veilrec.hex(veilrec.draw(offer, person, { metadata: new Map(), tensors: new Map() }, source)), query, "bytes");
      source.used();
    }),
  );
  check("query: pooled", () => {
    const { offer, serving, cases } = vectors.pooled;
    const file = veilrec.readSafetensors(bytes(serving));
    const dim = file.tensors.get("pooled.centre").shape[0];
    const [centre, axes] = [veilrec.doubles(file, "pooled.centre", [dim]), veilrec.doubles(file, "pooled.axes", [dim, offer.size])];
    for (const { clicks, pooled, words, query } of cases) {
      close(veilrec.pooled(clicks, { ...offer, centre, axes }), pooled, 1e-12, "pooled");
      const source = new Given(wordsIn(words));
      const person = { user: new Float64Array(dim), alpha: null, clicks };
      equal(veilrec.hex(veilrec.draw(offer, person, file, source)), query, "bytes");
      source.used();
    }
  });
  check("query: an offer that claims less than its noise keeps is refused", async () => {
    const offers = [...vectors.attention.cases.map(({ offer }) => offer).filter(({ mode }) => mode === "attention"), vectors.pooled.offer];
    for (const offer of offers) {
      await refused(() => veilrec.promiseOf({ ...offer, epsilon: 0.99 * offer.epsilon }), "a smaller epsilon");
      await refused(() => veilrec.promiseOf({ ...offer, unit: "user" }), "a larger unit");
      for (const name of ["scale", "sigma"])
        if (offer[name] !== undefined) await refused(() => veilrec.promiseOf({ ...offer, [name]: 0.99 * offer[name] }), "less noise");
    }
    await refused(() => veilrec.promiseOf({ ...vectors.pooled.offer, unit: "history" }), "a sum of clicks for a history");
    await refused(() => veilrec.promiseOf({ ...vectors.pooled.offer, mode: "other" }), "a mode that is not known");
  });
  check("query: bytes", async () => {
    for (const { kind, size, values, query } of vectors.queries.cases) {
      equal(veilrec.hex(veilrec.encodeQuery(kind, size, values)), query, kind);
      equal(veilrec.queryBytes(kind, size), query.length / 2, "length");
    }
    for (const { kind, size, values } of vectors.queries.refused)
      await refused(() => veilrec.encodeQuery(kind, size, values), `${kind} ${size} ${values}`);
    await refused(() => veilrec.encodeQuery("attention", 1, [NaN]), "no number");
  });

  check("guarantee: lines", () => {
    for (const { guarantee, line } of vectors.guarantees.lines) equal(veilrec.line(guarantee), line, "line");
  });
  check("guarantee: the privacy of Gaussian noise", () => {
    for (const { epsilon, mu, delta } of vectors.guarantees.deltas)
      close([veilrec.deltaGaussian(epsilon, mu)], [delta], 1e-10 * delta + 1e-16, `${epsilon} ${mu}`);
    for (const { epsilon, mu, dimension, delta } of vectors.guarantees.lattice)
      close([veilrec.latticeDelta(epsilon, mu, dimension)], [delta], 1e-9 * delta, "on the lattice");
  });

  for (const { name, program, weights, histories } of vectors.encoders.cases)
    check(`encoder: ${name}`, () => {
      const encoder = new veilrec.UserEncoder(program, veilrec.readSafetensors(bytes(weights)));
      for (const { clicks, user, alpha } of histories) {
        close(encoder.user(clicks), user, 1e-9, `user of ${clicks.length} clicks`);
        close(veilrec.decompose(encoder.user(clicks), encoder.basis), alpha, 1e-9, "attention");
      }
    });
  for (const { name, program } of vectors.encoders.malformed)
    check(`encoder: ${name} is refused`, async () => {
      const file = veilrec.readSafetensors(bytes(vectors.encoders.cases[0].weights));
      await refused(() => new veilrec.UserEncoder(program, file), name, veilrec.BadRelease);
    });
  check("encoder: what it does not know is refused", async () => {
    const { program, weights } = vectors.encoders.cases[0];
    const file = veilrec.readSafetensors(bytes(weights));
    let deep = { op: "history" };
    for (let at = 0; at < 40; at++) deep = { op: "latest", count: 1, of: deep };
    for (const user of [{ op: "eval" }, null, { ...program.user, of: { op: "x" } }, { ...program.user, of: deep }])
      await refused(() => new veilrec.UserEncoder({ ...program, user }, file), JSON.stringify(user)?.slice(0, 50), veilrec.BadRelease);
    await refused(() => new veilrec.UserEncoder({ ...program, empty: "nothing" }, file), "no such tensor", veilrec.BadRelease);
    const lost = { ...program, user: { ...program.user, weights: "nothing" } };
    await refused(() => new veilrec.UserEncoder(lost, file).user([new Float64Array(8)]), "no weights", veilrec.BadRelease);
  });

  for (const { name, program, file, histories } of vectors.veil.cases)
    check(`veil: ${name}`, () => {
      const ranking = veilrec.VeilRanking.read(program, veilrec.readSafetensors(bytes(file)), vectors.veil.items);
      for (const { history, scores, weights } of histories) {
        // Python sums in single precision: to 1e-5 of the largest.
        const largest = (numbers) => numbers.reduce((most, number) => Math.max(most, Math.abs(number)), 1);
        close(ranking.ownWeights(history), weights, 1e-5 * largest(weights), `weights of ${history.length} items`);
        close(ranking.scores(history), scores, 1e-5 * largest(scores), `scores of ${history.length} items`);
      }
    });
  for (const { name, file, bounds, contents, told } of vectors.trainer.cases)
    check(`trainer: ${name}: messages are Python's`, () => {
      const made = veilrec.FederationFile.read(bytes(file));
      const seed = BigInt(vectors.trainer.seed);
      for (const { number, history, bytes: size, parts, report } of told) {
        const message = made.message(bytes(contents[number]), number, history, seed, vectors.trainer.client);
        const view = new DataView(message.buffer);
        equal([message.length, veilrec.text(message.subarray(0, 4)), view.getUint32(4, true), view.getUint32(8, true), view.getUint8(12)], [size, "VRM1", number, 0, parts.length], "head");
        let [at, squares] = [13, 0];
        for (const [place, expected] of parts) {
          equal([view.getUint8(at), view.getUint8(at + 1)], [place, 0], "tensor");
          const values = expected.map((_, k) => view.getFloat32(at + 2 + 4 * k, true));
          // Python's gradients are sums in single precision: to 1e-5 of the largest.
          const largest = expected.reduce((most, value) => Math.max(most, Math.abs(value)), 1e-6);
          close(values, expected, 1e-5 * largest, `round ${number}, ${history.length} items, tensor ${place}`);
          squares += values.reduce((sum, value) => sum + value * value, 0);
          at += 2 + 4 * expected.length;
        }
        if (!(Math.sqrt(squares) <= bounds[number])) fail(`a message is ${Math.sqrt(squares)} long`);
        equal(veilrec.hex(made.report(number, history)), report, "report");
        equal(veilrec.hex(veilrec.reportFor(made.report(number + 5, history), number)), report, "the report of another round");
      }
    });
  check("trainer: what is no round of this federation is not answered", async () => {
    const { file, contents } = vectors.trainer.cases[0];
    const made = veilrec.FederationFile.read(bytes(file));
    const [good, seed] = [bytes(contents[0]), 5n];
    made.message(good, 0, [1, 2, 3, 4, 5, 6], seed);
    await refused(() => made.message(good, 1, [1], seed), "another round");
    await refused(() => made.message(good, 2, [1], seed), "beyond the last");
    await refused(() => made.message(good.slice(0, -1), 0, [1], seed), "cut off");
    await refused(() => made.message(veilrec.joined(good, Uint8Array.of(0)), 0, [1], seed), "something behind it");
    for (const [place, value] of [[0, 65], [4, 1], [4, 64], [13, 0], [14, 9]]) {
      const odd = good.slice();
      odd[place] = value;
      await refused(() => made.message(odd, 0, [1], seed), `byte ${place}`);
    }
    const others = good.slice(); // behind flags and bound: how many tensors, and which
    others[14] = bytes(contents[1])[15];
    const [shorter, longer] = [good.slice(), good.slice()];
    new DataView(shorter.buffer).setFloat64(5, 0.5, true);
    new DataView(longer.buffer).setFloat64(5, 1000, true);
    for (const [name, odd] of Object.entries({ others, shorter, longer })) {
      try {
        made.message(odd, 0, [1], seed);
        fail(`a round with ${name} is learnt from`);
      } catch (error) {
        equal(error.reason, "another plan", name);
      }
    }
    for (const [weight, reason] of [[2 ** 21, "beyond the bound"], [Infinity, "not finite"]]) {
      const loud = good.slice(); // its last number is one of what is learnt
      new DataView(loud.buffer).setFloat32(loud.length - 4, weight, true);
      try {
        made.message(loud, 0, [1], seed);
        fail(`a weight of ${weight} is learnt from`);
      } catch (error) {
        equal(error.reason, reason, `${weight}`);
      }
    }
  });
  check("trainer: a file that promises more than its noise keeps is refused", async () => {
    const long = (part) => veilrec.joined(new Uint8Array(BigUint64Array.of(BigInt(part.length)).buffer), part);
    const changed = (from, to, whole = bytes(vectors.trainer.cases[0].file)) => {
      const [agreed, rest] = veilrec.parted(whole);
      const [address, acted] = veilrec.parted(rest);
      const length = Number(new DataView(acted.buffer).getBigUint64(0, true));
      const header = veilrec.text(acted.subarray(8, 8 + length));
      if (!header.includes(from)) fail(`the header has no ${from}`);
      const other = veilrec.utf8(header.replace(from, to));
      return veilrec.joined(long(agreed), long(address), long(other), acted.subarray(8 + length));
    };
    const file = bytes(vectors.trainer.cases[0].file);
    const [agreed, rest] = veilrec.parted(file);
    const [, acted] = veilrec.parted(rest);
    const elsewhere = (address, other = agreed) => veilrec.joined(long(other), long(veilrec.utf8(address)), acted);
    const pin = await veilrec.sha256(agreed);
    await veilrec.FederationFile.agreed(file, pin);
    await veilrec.FederationFile.agreed(elsewhere("https://127.0.0.1:9"), pin); // a coordinator may move
    await refused(() => veilrec.FederationFile.read(elsewhere("http:///127")), "an address");
    await refused(() => veilrec.FederationFile.agreed(file, "0".repeat(64)), "another federation than the invitation's");
    await refused(() => veilrec.FederationFile.agreed(changed("0.125", "0.25"), pin), "another file than the one agreed on");
    for (const [from, to] of [['"clients": 5', '"clients": 6'], ['"secagg": "none"', '"secagg": "helpers"']]) {
      const other = veilrec.utf8(veilrec.text(agreed).replace(from, to));
      if (veilrec.same(other, agreed)) fail(`it has no ${from}`);
      const digest = await veilrec.sha256(other);
      await refused(() => veilrec.FederationFile.agreed(elsewhere("https://127.0.0.1:9", other), digest), to);
    }
    veilrec.FederationFile.read(changed("0.125", "0.125"));
    const withPlaces = bytes(vectors.trainer.cases.find(({ name }) => name === "places").file);
    await refused(() => veilrec.FederationFile.read(changed('noise\\": {\\"places', 'noise\\": {\\"others', withPlaces)), "places without noise");
    const twice = bytes(vectors.trainer.cases.find(({ name }) => name === "two passes").file);
    for (const [from, to] of [
      ['\\"further\\": 4.0', '\\"others\\": 4.0'], // no noise
      ['place_passes\\": 2', 'place_passes\\": 1'],
      ['\\"further\\", \\"shape\\": [40, 3]', '\\"further\\", \\"shape\\": [40, 2]'],
    ])
      await refused(() => veilrec.FederationFile.read(changed(from, to, twice)), to);
    await refused(() => veilrec.FederationFile.read(changed('place_passes\\": 1', 'place_passes\\": 2', withPlaces)), "one pass that is said to be two");
    const sums = (helpers, least = 2) => changed('secure_sums\\": null', `secure_sums\\": {\\"helpers\\": [${helpers.map((key) => `\\"${key}\\"`)}], \\"least\\": ${least}, \\"max_clients\\": 9}`);
    const [one, two] = ["ab".repeat(32), "cd".repeat(32)];
    equal(veilrec.FederationFile.read(sums([one, two])).trust, "server sees only sums", "trust");
    for (const odd of [sums([]), sums([one, one]), sums([one, "cd"]), sums([one, two], 1), sums([one, two], 2.5)])
      await refused(() => veilrec.FederationFile.read(odd), "secure sums");
    for (const [from, to] of [
      ['sigma\\": 4.0', 'sigma\\": 3.9'],
      ['[0.25, 0.0625]', '[0.24, 0.0625]'],
      ['mu_of_report\\": 0.125', 'mu_of_report\\": 0.124'],
      ['method\\": \\"veil', 'method\\": \\"vail'],
      ['asked\\": [[\\"weights', 'asked\\": [[\\"votes'],
    ])
      await refused(() => veilrec.FederationFile.read(changed(from, to)), to);
  });
  check("trainer: invitations and signatures are Python's", async () => {
    const { invitation, client, content, statement, signature } = vectors.trainer.signed;
    const [name, key, agreed] = await veilrec.readInvitation(invitation);
    equal(agreed, "0".repeat(64), "digest");
    equal(name, client, "client");
    const said = await veilrec.statementFor("0123456789abcdef0123456789abcdef", name, "round", 7, bytes(content));
    equal(said, statement, "statement");
    const signed = await crypto.subtle.sign({ name: "Ed25519" }, key, veilrec.utf8(`veilrec federation\n${said}`));
    equal(veilrec.hex(new Uint8Array(signed)), signature, "signature");
    for (const odd of ["", "d1", "d1:00", `d1:${"g".repeat(64)}`, `:${"0".repeat(64)}`, `d1:${"0".repeat(64)}`]) await refused(() => veilrec.readInvitation(odd), odd);
  });

  const ofMasks = async () => {
    const { identity, own, own_public, place } = vectors.masks;
    const secret = (name, prefix, digits, uses) =>
      crypto.subtle.importKey("pkcs8", veilrec.fromHex(prefix + digits), { name }, false, uses);
    const key = await secret("Ed25519", "302e020100300506032b657004220420", identity, ["sign"]);
    const privateKey = await secret("X25519", "302e020100300506032b656e04220420", own, ["deriveBits"]);
    const publicKey = await crypto.subtle.importKey("raw", veilrec.fromHex(own_public), { name: "X25519" }, true, []);
    return [{ key, place }, { privateKey, publicKey }];
  };
  check("masks: messages under masks are Python's, byte for byte", async () => {
    const [signer, own] = await ofMasks();
    const { secure_sums, updates, reports } = vectors.masks;
    const [federation, model] = [veilrec.fromHex(vectors.masks.federation), bytes(vectors.masks.model)];
    for (const { invitation, values, number, width, clients, check: expected, sent } of [...updates, ...reports]) {
      const about = number < 2 ** 31 ? veilrec.sumOfRound(number) : veilrec.sumOfReports(number, clients);
      equal(about, { number, width }, "sum");
      const numbers = BigInt64Array.from(values, BigInt);
      const key = bytes(invitation).slice(-32);
      equal(String(await veilrec.checkValue(new BigUint64Array(numbers.buffer), key)), expected, "check");
      const found = await veilrec.masked(bytes(invitation), model, numbers, about, federation, secure_sums, signer, own);
      equal(veilrec.hex(found), veilrec.hex(bytes(sent)), `a message of ${values.length} numbers`);
      const again = () => veilrec.masked(bytes(invitation), model, numbers, about, federation, secure_sums, signer);
      const keys = [found, await again(), await again()].map((message) => veilrec.hex(message.subarray(4, 36)));
      if (new Set(keys).size < 3) fail("a message that is made again has the same key");
    }
  });
  check("masks: whole numbers and votes are Python's", () => {
    for (const { bound, clients, values, whole } of vectors.masks.fixed_points)
      equal([...veilrec.onLattice(values, bound, clients)].map(String), whole, `bound ${bound}, ${clients} clients`);
    const file = veilrec.FederationFile.read(bytes(vectors.trainer.cases[0].file));
    for (const { history, votes } of vectors.masks.votes) equal([...file.votes(history)].map(String), votes, `${history.length} items`);
    const { contents, told, bounds } = vectors.trainer.cases[0]; // a message is the same, in steps
    const { number, history } = told.at(-1);
    const [content, seed] = [bytes(contents[number]), BigInt(vectors.trainer.seed)];
    const message = file.message(content, number, history, seed);
    const view = new DataView(message.buffer);
    const values = [];
    for (let at = 13; at < message.length; ) {
      const size = vectors.trainer.cases[0].told.at(-1).parts[view.getUint8(at)][1].length;
      for (let k = 0; k < size; k++) values.push(view.getFloat32(at + 2 + 4 * k, true));
      at += 2 + 4 * size;
    }
    equal([...file.answer(content, number, history, seed).numbers()].map(String), [...veilrec.onLattice(values, bounds[number], 1)].map(String), "numbers");
  });
  check("masks: invitations that no client follows", async () => {
    const [signer] = await ofMasks();
    const { secure_sums, updates, reports, refused: odd } = vectors.masks;
    const [federation, model] = [veilrec.fromHex(vectors.masks.federation), bytes(vectors.masks.model)];
    const good = updates.find(({ values }) => values.length === 7);
    const [values, about] = [BigInt64Array.from(good.values, BigInt), veilrec.sumOfRound(good.number)];
    const send = (invitation, sums = secure_sums) => veilrec.masked(bytes(invitation), model, values, about, federation, sums, signer);
    await send(good.invitation);
    for (const [why, invitation] of Object.entries(odd)) await refused(() => send(invitation), why);
    const louder = () => veilrec.masked(bytes(good.invitation), veilrec.utf8("louder"), values, about, federation, secure_sums, signer);
    await refused(louder, "another model");
    equal(await louder().catch((error) => error.reason), "another digest", "reason");
    for (const other of [-1, 1]) await refused(() => send(good.invitation, { ...secure_sums, least: secure_sums.least + other }), `${other} of the least`);
    await refused(() => veilrec.sumOfRound(2 ** 31), "a round with the number of reports");
    for (const other of [0, 2 ** 31 - 1, 2 ** 31 + 1]) await refused(() => veilrec.sumOfReports(other, 5), `reports ${other}`);
    const [report] = reports; // numbers of other sizes, for another number of clients
    const told = BigInt64Array.from(report.values, BigInt);
    for (const [clients, fits] of [[report.clients, true], [4 * report.clients, false]]) {
      const sent = () => veilrec.masked(bytes(report.invitation), model, told, veilrec.sumOfReports(report.number, clients), federation, secure_sums, signer);
      await (fits ? sent() : refused(sent, "another width"));
    }
    await refused(() => send(good.invitation, { ...secure_sums, helpers: secure_sums.helpers.slice(1) }), "other helpers");
    const whole = bytes(good.invitation); // every byte of it but those of the check's key
    for (let at = 0; at < whole.length - 32; at += at < 56 ? 1 : 7) {
      const changed = whole.slice();
      changed[at] ^= 1;
      await refused(() => veilrec.masked(changed, model, values, about, federation, secure_sums, signer), `byte ${at}`);
    }
    for (const cut of [0, 7, 40]) await refused(() => veilrec.parted(whole.slice(0, cut)), `cut at ${cut}`);
  });
  check("veil: what leads out of its tables is refused", async () => {
    for (const { program, file } of vectors.veil.broken)
      await refused(() => veilrec.VeilRanking.read(program, veilrec.readSafetensors(bytes(file)), vectors.veil.items), JSON.stringify(program));
    const { program, file } = vectors.veil.cases[0];
    const whole = veilrec.readSafetensors(bytes(file));
    await refused(() => veilrec.VeilRanking.read(program, whole, vectors.veil.items + 1), "another number of items");
  });
  check("safetensors: 16 bits", () => {
    const bits = [0, 0x3c00, 0xbc00, 0x7bff, 1, 0x83ff, 0x3555];
    const header = JSON.stringify({ x: { dtype: "F16", shape: [bits.length], data_offsets: [0, 2 * bits.length] } });
    const content = veilrec.joined(new Uint8Array(BigUint64Array.of(BigInt(header.length)).buffer), veilrec.utf8(header), new Uint8Array(Uint16Array.from(bits).buffer));
    const expected = [0, 1, -1, 65504, 2 ** -24, -1023 * 2 ** -24, 0.333251953125];
    equal([...veilrec.doubles(veilrec.readSafetensors(content), "x", [bits.length])], expected, "numbers");
  });

  check("pool: what is in it, and its order", async () => {
    const pool = veilrec.Pool.read(bytes(vectors.pools.file));
    const { ids, titles, categories, user, alpha } = vectors.pools;
    equal([pool.ids, pool.titles, pool.release, pool.whole, pool.exact], [ids, titles, "synthetic 3", true, false], "texts");
    equal(ids.map((_, at) => pool.categoryOf(at)), categories, "categories");
    vectors.pools.vectors.forEach((vector, at) => close(pool.vector(at), vector, 1e-7, "vector"));
    close(pool.byVector(user), vectors.pools.by_user, 1e-5, "by vector");
    close(pool.byAttention(alpha), vectors.pools.by_alpha, 1e-5, "by attention");
    const order = ids.map((_, at) => at).sort((a, b) => vectors.pools.by_user[b] - vectors.pools.by_user[a]);
    equal(veilrec.best(pool.byVector(user), ids, new Set(), 5), order.slice(0, 5), "the best");
    const read = new Set([ids[order[0]], ids[order[2]]]);
    equal(veilrec.best(pool.byVector(user), ids, read, 3), [order[1], order[3], order[4]], "without what was read");
    await refused(() => pool.byVector([1]), "a vector of another length");
  });
  check("pool: files that are none", async () => {
    for (const broken of vectors.pools.broken) await refused(() => veilrec.Pool.read(bytes(broken)), broken.slice(0, 40));
    const whole = bytes(vectors.pools.file);
    const length = Number(new DataView(whole.buffer).getBigUint64(0, true));
    let taken = 0;
    // Every byte of the header changed in turn: taken only where it stays a pool (a name in the metadata, a space).
    for (let at = 0; at < 8 + length; at++) {
      const changed = whole.slice();
      changed[at] ^= 1;
      try {
        veilrec.Pool.read(changed);
        taken++;
      } catch (error) {
        if (!(error instanceof veilrec.BadInput)) fail(`byte ${at}: ${error}`);
      }
    }
    if (taken > 0.4 * length) fail(`${taken} of ${length} changed headers were taken`);
  });

  for (const { name, envelope, trust, good, now, warned } of vectors.releases.cases)
    check(`release: ${name}`, async () => {
      if (!good) return void (await refused(() => veilrec.verifyRelease(envelope, trust, 1000 * now), name));
      const verified = await veilrec.verifyRelease(envelope, trust, 1000 * now);
      equal(verified.warning !== "", warned, "warning");
      equal(verified.trust.key, envelope.signature.key, "key");
      equal(verified.firstUse, trust.key === null, "first use");
      equal(verified.trust.newest["made-up"].version, verified.manifest.version, "newest");
    });
  check("release: anything but an envelope", async () => {
    for (const odd of [null, 1, "x", [], {}, { manifest: "{}" }, { manifest: "{}", signature: {}, keys: [] }, { manifest: "{}", signature: null, keys: [] }])
      await refused(() => veilrec.verifyRelease(odd, { key: null, newest: {} }), JSON.stringify(odd));
  });
  check("release: every byte of manifest and signature counts", async () => {
    const { envelope, trust } = vectors.releases.cases[0];
    for (let at = 0; at < envelope.manifest.length; at += 7) {
      const letter = envelope.manifest[at] === "x" ? "y" : "x";
      const manifest = envelope.manifest.slice(0, at) + letter + envelope.manifest.slice(at + 1);
      await refused(() => veilrec.verifyRelease({ ...envelope, manifest }, trust), `letter ${at}`);
    }
    const signature = bytes(envelope.signature.signature);
    for (let at = 0; at < 64; at++) {
      const changed = signature.slice();
      changed[at] ^= 4;
      const text = btoa(String.fromCharCode(...changed));
      await refused(() => veilrec.verifyRelease({ ...envelope, signature: { ...envelope.signature, signature: text } }, trust), `byte ${at}`);
    }
  });
  check("release: files", async () => {
    const { path, content, altered } = vectors.releases.file;
    const manifest = JSON.parse(vectors.releases.cases[0].envelope.manifest);
    equal(await veilrec.checkedFile(manifest, path, bytes(content)), bytes(content), "content");
    for (const [name, bad] of [[path, bytes(altered)], [path, bytes(content).slice(1)], ["other", bytes(content)], ["constructor", bytes(content)]])
      await refused(() => veilrec.checkedFile(manifest, name, bad), name, veilrec.BadRelease);
  });

  check("budget: costs add up, and never more than allowed", async () => {
    const cost = (epsilon, delta = 0) => ({ epsilon, delta });
    const budgets = ["history", "click"].map((unit) => ({ unit, adjacency: "replace-one", period: cost(5, 1e-5), lifetime: cost(8, 1e-4) }));
    const told = (epsilon, unit = "history", delta = 0) => ({ epsilon, delta, unit, adjacency: "replace-one" });
    let record = veilrec.emptyLedger(budgets);
    record = veilrec.charged(record, "p1", told(3));
    equal(record.accounts.map(({ lifetime }) => lifetime.epsilon), [3, 3], "a message about a history is about its clicks");
    await refused(() => veilrec.charged(record, "p1", told(2.0000001)), "the period", veilrec.BudgetExhausted);
    record = veilrec.charged(record, "p1", told(2, "click", 1e-6));
    equal(record.accounts.map(({ uncovered, lifetime }) => [uncovered, lifetime.epsilon]), [[1, 3], [0, 5]], "a click is no history");
    equal(veilrec.spent(record.accounts[0]).basis, "none", "nothing is stated after it");
    record = veilrec.charged(record, "p2", told(3, "click"));
    await refused(() => veilrec.charged(record, "p3", told(0.1, "click")), "the lifetime", veilrec.BudgetExhausted);
    await refused(() => veilrec.charged(veilrec.charged(veilrec.emptyLedger(budgets), "p2", told(5)), "p2", told(1)), "p2", veilrec.BudgetExhausted);
    await refused(() => veilrec.charged(record, "p4", told(1, "click", 1e-5 * 1.01)), "delta", veilrec.BudgetExhausted);
    const plain = veilrec.charged(record, "p4", null);
    equal(plain.accounts.map(({ uncovered }) => uncovered), [3, 1], "in the clear");
    let sum = 0;
    for (let at = 0; at < 1000; at++) sum = veilrec.sumRoundedUp(sum, 0.1);
    if (!(sum >= 100)) fail(`a sum was rounded down: ${sum}`);
  });
  return found;
}
