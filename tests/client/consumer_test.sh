#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the client library under a new prefix, and builds and runs a separate project against
# it.
# usage: consumer_test.sh BUILD_DIR CXX_COMPILER CXX_FLAGS [GEMMD]
# With the daemon's binary the project also multiplies on it.
set -euo pipefail

build=$1
compiler=$2
flags=$3
gemmd=${4:-}
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/consumer" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for folder in proto client; do
  cmake --install "$build/$folder" --prefix "$work/prefix" >"$work/install.log"
done
# No internal header may be installed, and no installed file may refer to the source tree.
if find "$work/prefix/include" -name 'npy*' -o -name 'channel.h' -o -name 'health*' | grep .; then
  echo "internal headers were installed" >&2
  exit 1
fi
if grep -rn "$build" "$work/prefix/lib"*/cmake; then
  echo "the package names the build folder" >&2
  exit 1
fi
cmake -S "$source" -B "$work/build" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_CXX_FLAGS="$flags" \
  -DCMAKE_CXX_COMPILER_LAUNCHER="$(command -v ccache || true)" >"$work/configure.log"
cmake --build "$work/build"
"$work/build/consumer"
if [[ -n $gemmd ]]; then
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost \
    -addext subjectAltName=IP:127.0.0.1 -keyout "$work/key.pem" -out "$work/cert.pem" 2>"$work/openssl.log"
  "$gemmd" --listen=127.0.0.1:0,tls:127.0.0.1:0 --tls-cert="$work/cert.pem" --tls-key="$work/key.pem" --ready-file="$work/ready" --lame-duck=0s 2>"$work/log" &
  daemon=$!
  trap 'kill -TERM "$daemon" 2>/dev/null || true; rm -rf "$work"' EXIT
  for _ in $(seq 600); do
    [[ -f $work/ready ]] && break
    kill -0 "$daemon" || { cat "$work/log" >&2; exit 1; }
    sleep 0.1
  done
  mapfile -t addresses <"$work/ready"
  "$work/build/consumer" "${addresses[@]}" "$work/cert.pem"
  kill -TERM "$daemon"
  wait "$daemon"
fi
"$work/prefix/bin/gemmctl" --version
