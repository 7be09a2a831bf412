#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Whether the installed tree runs wherever it is put: with bundled libraries, with no library of this
# machine but glibc's; otherwise, with none of its own.
# usage: install_test.sh BUILD_DIR bundled|alone
set -euo pipefail

build=$1
kind=$2
work=$(mktemp -d)
daemon=
cleanup() {
  if [[ -n $daemon ]]; then kill -KILL "$daemon" 2>/dev/null || true; fi
  rm -rf "$work"
}
trap cleanup EXIT

fail() {
  echo "$*" >&2
  exit 1
}

# Libraries that every target machine has: glibc and the driver of its GPUs.
is_of_the_machine() {
  [[ $1 =~ ^(ld-linux.*|linux-vdso|lib(c|m|mvec|dl|rt|pthread|resolv|util|cuda))\.so ]]
}

# Prints libraries that the loader would use and that belong neither to the tree $1 nor to the
# target machine.
strangers() {
  local tree=$1 program name path
  for program in "$tree"/bin/*; do
    while read -r name path; do
      is_of_the_machine "$(basename "$name")" && continue
      [[ $(readlink -f "$path") == "$tree"/lib/gemmd/* ]] || echo "$(basename "$program"): $name $path"
    done < <(env -i LD_TRACE_LOADED_OBJECTS=1 "$program" | sed -n 's/ => / /; s/^\t*//; s/ (0x.*//p; /not found/p')
  done
}

cmake --install "$build" --prefix "$work/first" --strip --component runtime >"$work/install.log" ||
  fail "$(cat "$work/install.log")"
mv "$work/first" "$work/moved"
tree="$work/moved"
for file in bin/gemmd bin/gemmctl bin/gemmload bin/gemmbench share/doc/gemmd/LICENSE; do
  [[ -f $tree/$file ]] || fail "$file was not installed"
done
for file in share/man/man1/gemmctl.1 share/man/man1/gemmload.1 share/man/man8/gemmd.8; do
  [[ $(head -1 "$tree/$file") == ".TH "* ]] || fail "$file was not installed, or is no manual page"
done
[[ $(bash -c "source '$tree/share/bash-completion/completions/gemmctl' && complete -p gemmctl") == *-F* ]] ||
  fail "no completion for bash was installed"
[[ $(head -1 "$tree/share/zsh/site-functions/_gemmctl") == "#compdef gemmctl" ]] ||
  fail "no completion for zsh was installed"
# No file contains the path of the build folder or of the sources, or the time of the installation.
sources=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
if grep -lF -e "$build" -e "$sources/" "$tree"/bin/*; then fail "a program names the folder that it was built in"; fi
cmake --install "$build" --prefix "$work/elsewhere/second" --strip --component runtime >"$work/install.log"
diff --recursive --no-dereference "$tree" "$work/elsewhere/second" || fail "a second installation differs"

# No library is in a place where a prefix such as /usr has the system's.
beside=$(find "$tree" -name '*.so*' -not -path "$tree/lib/gemmd/*")
[[ -z $beside ]] || fail "libraries outside of lib/gemmd: $beside"
if [[ $kind == bundled ]]; then
  [[ -s $tree/share/doc/gemmd/sbom.spdx.json ]] || fail "no bill of materials was installed"
  [[ -s $tree/share/doc/gemmd/vex.openvex.json ]] || fail "no OpenVEX document was installed"
  found=$(strangers "$tree")
  [[ -z $found ]] || fail "not in the tree: $found"
  # The check notices a missing library.
  gone=$(find "$tree/lib/gemmd" -name 'libgrpc.so*')
  mkdir "$work/gone"
  mv $gone "$work/gone"
  [[ $(strangers "$tree") == *libgrpc.so* ]] || fail "a missing library was not noticed"
  mv "$work"/gone/* "$tree/lib/gemmd"
elif [[ -e $tree/lib ]]; then
  fail "libraries were installed that nobody asked for: $(ls "$tree/lib")"
elif readelf --dynamic "$tree"/bin/* | grep -E 'RPATH|RUNPATH'; then
  fail "a program looks for libraries where there are none"
fi

du --summarize --human-readable "$tree"
"$tree/bin/gemmd" --listen="127.0.0.1:0,unix:$work/gemmd.sock" --ready-file="$work/ready" \
  --lame-duck=0s 2>"$work/log" &
daemon=$!
for _ in $(seq 600); do
  [[ -f $work/ready ]] && break
  kill -0 "$daemon" || fail "$(cat "$work/log")"
  sleep 0.1
done
mapfile -t addresses <"$work/ready"
((${#addresses[@]} == 2)) || fail "got ${#addresses[@]} addresses, want 2"
for address in "${addresses[@]}"; do
  "$tree/bin/gemmctl" --address "$address" multiply --random 33,17,65 --type f32 --verify
done
# The libraries that were really loaded, including those opened later.
while [[ $kind == bundled ]] && read -r path; do
  [[ $path == "$tree"/* ]] || is_of_the_machine "$(basename "$path")" || fail "gemmd loaded $path"
done < <(awk '$6 ~ /\.so/ {print $6}' "/proc/$daemon/maps" | sort -u)
kill -TERM "$daemon"
wait "$daemon"
daemon=
