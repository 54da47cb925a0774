// Bundles the front end and compresses it into ../assets, or into the directory that is given. `cargo build` embeds the
// result and needs no Node.
import { build } from "esbuild";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const here = dirname(fileURLToPath(import.meta.url));
const target = process.argv[2] ?? join(here, "../assets");
mkdirSync(target, { recursive: true });

const common = { bundle: true, minify: true, write: false, absWorkingDir: here, charset: "utf8", legalComments: "none" };
const script = await build({
  ...common,
  entryPoints: ["src/main.tsx"],
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
});
const style = await build({ ...common, entryPoints: ["src/app.css"] });
const files = {
  "app.js": script.outputFiles[0].contents,
  "app.css": style.outputFiles[0].contents,
  "index.html": readFileSync(join(here, "src/index.html")),
  "icon.svg": readFileSync(join(here, "src/icon.svg")),
};
for (const [name, contents] of Object.entries(files)) {
  writeFileSync(join(target, `${name}.gz`), gzipSync(contents, { level: 9 }));
}
