// StyLua without its program: stylua.mjs FOLDER STYLUA.TOML [--fix] FILE...
// Prints each file that StyLua would change and exits with 1; --fix writes the files.
import { createRequire } from "node:module";
import { readFileSync, writeFileSync } from "node:fs";

const [folder, settings, ...rest] = process.argv.slice(2);
const stylua = createRequire(`${folder}/`)("@johnnymorganz/stylua");
const { Config, formatCode, OutputVerification } = stylua;
const ENUMS = {
  indent_type: "IndentType",
  quote_style: "QuoteStyle",
  call_parentheses: "CallParenType",
};

const options = [...readFileSync(settings, "utf8").matchAll(/^(\w+) = (?:"(\w+)"|(\d+))$/gm)];

// formatCode consumes its configuration
function config() {
  const made = Config.new ? Config.new() : new Config();
  for (const [, key, text, number] of options) made[key] = number ? Number(number) : stylua[ENUMS[key]][text];
  return made;
}

let isClean = true;
for (const file of rest.filter((name) => name !== "--fix")) {
  const code = readFileSync(file, "utf8");
  const formatted = formatCode(code, config(), undefined, OutputVerification.None);
  if (formatted === code) continue;
  console.log(file);
  if (rest.includes("--fix")) writeFileSync(file, formatted);
  else isClean = false;
}
process.exit(isClean ? 0 : 1);
