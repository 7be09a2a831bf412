#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# From a fresh Debian 12 to a checked product: installs the packages, builds gemmd, starts it on a free
# loopback port and a unix socket, multiplies two .npy files, checks the result against sums made by the
# client, prints the timing and stops the daemon. It takes seconds when run again.
set -euo pipefail

if (($# > 0)); then
  sed -n '4,6s/^# //p' "$0"
  echo "usage: $0"
  [[ $1 == --help ]] && exit 0
  exit 2
fi

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build="$root/build/release"
say() { printf '\n== %s\n' "$*"; }

say "Packages"
"$root/deploy/install-packages.sh" build
echo "all installed"

say "Build"
if [[ ! -f $build/build.ninja ]]; then
  (cd "$root" && cmake --preset release -DGEMMD_BUILD_TESTS=OFF -DGEMMD_BUNDLE_LIBRARIES=ON)
fi
cmake --build "$build" --target gemmd gemmctl gemmload

work=$(mktemp -d)
daemon=
stop() {
  if [[ -n $daemon ]] && kill -0 "$daemon" 2>/dev/null; then kill -KILL "$daemon"; fi
  rm -rf "$work"
}
trap stop EXIT

say "Start"
"$build/bin/gemmd" --listen="127.0.0.1:0,unix:$work/gemmd.sock" --ready-file="$work/ready" \
  --lame-duck=0s 2>"$work/log" &
daemon=$!
for _ in $(seq 600); do
  [[ -f $work/ready ]] && break
  if ! kill -0 "$daemon" 2>/dev/null; then
    cat "$work/log" >&2
    exit 1
  fi
  sleep 0.1
done
if [[ ! -f $work/ready ]]; then
  echo "gemmd is not ready after 60 s:" >&2
  cat "$work/log" >&2
  exit 1
fi
mapfile -t addresses <"$work/ready"
echo "gemmd $daemon serves ${addresses[*]}"

gemmctl() { "$build/bin/gemmctl" --address "$1" "${@:2}"; }

say "Multiply: 300x200 times 200x100 over ${addresses[0]}"
gemmctl "${addresses[0]}" random 300,200 --type f32 --seed 1 --output "$work/a.npy"
gemmctl "${addresses[0]}" random 200,100 --type f32 --seed 2 --output "$work/b.npy"
gemmctl "${addresses[0]}" multiply "$work/a.npy" "$work/b.npy" --output "$work/d.npy" --verify

say "Multiply: the same over ${addresses[1]}"
gemmctl "${addresses[1]}" multiply "$work/a.npy" "$work/b.npy" --output "$work/d_unix.npy" --verify
cmp "$work/d.npy" "$work/d_unix.npy"
echo "the same bytes"

say "Stop"
kill -TERM "$daemon"
wait "$daemon"
daemon=
tail -n 1 "$work/log"

say "Done. Start it yourself: $build/bin/gemmd --help"
