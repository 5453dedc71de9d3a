#!/bin/sh
# install.sh FOLDER: Neovim 0.12 and 0.10 from Debian's archive, each in a folder of its own, and StyLua.
# The system's packages stay as they are, but for patchelf. What cannot be installed is an error on CI; elsewhere its tests
# are skipped.
set -eu

missing() {
  echo "$1" >&2
  [ -z "${CI:-}" ] || exit 1
}

folder=$1
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

has() { command -v "$1" >/dev/null; }

# The archive that this machine already uses, in either of apt's two formats.
archive() {
  cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
    awk '$1 == "deb" || $1 == "URIs:" { for (i = 2; i <= NF; i++) if ($i ~ /\/debian\/?$/) { print $i; exit } }'
}

# neovim VERSION SUITE
neovim() {
  home=$folder/nvim-$1 work=$folder/nvim-$1.part
  [ -x "$home/nvim" ] && return
  rm -rf "$work"
  mkdir -p "$work/apt/lists/partial" "$work/apt/archives/partial" "$work/root"
  : >"$work/apt/status"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(archive) $2 main" >"$work/apt/sources.list"
  # an apt that knows of no installed package, so that the C library of that Debian comes with it
  set -- "$1" -qq -o Dir::Etc::sourcelist="$work/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::Etc::preferencesparts=/dev/null -o Dir::State::lists="$work/apt/lists" \
    -o Dir::State::status="$work/apt/status" -o Dir::Cache="$work/apt" -o Acquire::Languages=none \
    -o APT::Sandbox::User=root
  version=$1
  shift
  apt-get "$@" update || return
  apt-get "$@" -y --no-install-recommends --download-only install neovim >/dev/null || return
  for package in "$work"/apt/archives/*.deb; do dpkg-deb -x "$package" "$work/root"; done
  rm -rf "$work/apt" "$home"
  mv "$work" "$home"
  # patchelf rather than `ld.so nvim`: its terminal interface starts its own program again
  program=$home/root/usr/bin/nvim
  libraries=$(dirname "$(find "$home/root" -name libc.so.6 | head -n 1)")
  patchelf --set-interpreter "$home/root/usr$(patchelf --print-interpreter "$program")" \
    --force-rpath --set-rpath "$libraries" "$program"
  printf '#!/bin/sh\nexport VIMRUNTIME=%s/usr/share/nvim/runtime\nexec %s "$@"\n' "$home/root" "$program" >"$home/nvim"
  chmod +x "$home/nvim"
  case $("$home/nvim" --version) in
  "NVIM v$version"*) ;;
  *) rm -rf "$home" && return 1 ;;
  esac
}

if [ "$(id -u)" = 0 ] && grep -qs '^ID=debian' /etc/os-release && has apt-get; then
  has patchelf || { apt-get update -qq && apt-get install -y -qq --no-install-recommends patchelf >/dev/null; }
  neovim 0.12 forky || missing 'No Neovim 0.12 could be installed: its tests are skipped.'
  neovim 0.10 trixie || missing 'No Neovim 0.10 could be installed: its tests are skipped.'
else
  echo 'Neovim 0.12 and 0.10 are installed by root on Debian: elsewhere their tests are skipped.' >&2
fi

if has npm; then
  npm install --silent --no-fund --no-audit --ignore-scripts --prefix "$folder/stylua" @johnnymorganz/stylua@2.5.2 \
    2>/dev/null || echo 'No StyLua could be installed: the style of the Lua is not checked.' >&2
else
  echo 'No npm here: the style of the Lua is not checked.' >&2
fi
