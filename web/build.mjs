// Writes src/veilrec/serving/static: what a browser loads, types for those who embed it, and what it was made of.
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { cpSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const out = join(here, "..", "src", "veilrec", "serving", "static");
const sha256 = (content) => createHash("sha256").update(content).digest("hex");

function sources() {
  const listed = (folder) => readdirSync(join(here, folder)).map((name) => `${folder}/${name}`);
  const files = ["build.mjs", "package.json", "tsconfig.json", ...listed("src"), ...listed("page")].sort();
  const hash = createHash("sha256");
  for (const file of files) hash.update(`${file}\0`).update(readFileSync(join(here, file))).update("\0");
  return hash.digest("hex");
}

rmSync(out, { recursive: true, force: true });
mkdirSync(out, { recursive: true });
const common = { bundle: true, format: "esm", target: "es2022", minify: true, charset: "utf8", logLevel: "warning" };
await build({ ...common, entryPoints: [join(here, "src/index.ts")], outfile: join(out, "veilrec.js") });
const apart = {
  name: "the client is a file of its own",
  setup(building) {
    building.onResolve({ filter: /src\/index\.js$/ }, () => ({ path: "./veilrec.js", external: true }));
  },
};
await build({ ...common, entryPoints: [join(here, "page/app.ts")], outfile: join(out, "app.js"), plugins: [apart] });
await build({ ...common, entryPoints: [join(here, "page/style.css")], outfile: join(out, "style.css") });
for (const file of ["index.html", "icon.svg"]) cpSync(join(here, "page", file), join(out, file));
const types = ["--declaration", "--emitDeclarationOnly", "--rootDir", "src", "--outDir", join(out, "types")];
const options = ["--target", "es2022", "--module", "es2022", "--moduleResolution", "bundler", "--strict"];
const libraries = ["--lib", "es2022,dom,dom.iterable", "--types", "", "--ignoreConfig"];
const tsc = join(here, "node_modules", ".bin", "tsc");
execFileSync(tsc, ["src/index.ts", ...types, ...options, ...libraries], { cwd: here, stdio: "inherit" });
writeFileSync(join(out, "veilrec.d.ts"), 'export * from "./types/index.js";\n');
const built = readdirSync(out, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
const files = {};
for (const path of built.map((entry) => join(entry.parentPath, entry.name)).sort())
  files[path.slice(out.length + 1)] = sha256(readFileSync(path));
writeFileSync(join(out, "BUILD"), `${JSON.stringify({ sources: sources(), files }, null, 1)}\n`);
