#!/bin/sh
# install.sh FOLDER: VS Code for the browser, by the Node in FOLDER/bin.
# Nothing is compiled: what would be, such as the terminal, is not there, and no test needs it.
set -eu

mkdir -p "$1/code-server"
folder=$(cd "$1" && pwd)
export PATH="$folder/bin:$PATH"

npm="npm install --silent --ignore-scripts --no-audit --no-fund"
$npm --prefix "$folder/code-server" code-server@4.139.1
cd "$folder/code-server/node_modules/code-server/lib/vscode"
$npm --omit=dev --omit=optional
