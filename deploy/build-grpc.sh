#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds a newer gRPC than Debian's, with the Protobuf and Abseil that it was released with, and installs
# them in a folder of their own. SECURITY.md says which faults of Debian's gRPC that mends.
#
#   deploy/build-grpc.sh /opt/grpc
#   CMAKE_PREFIX_PATH=/opt/grpc deploy/quickstart.sh
#   CMAKE_PREFIX_PATH=/opt/grpc tests/run.sh
#
# A build folder keeps the gRPC that it was configured with. This takes an hour on two processors and
# 3 GB while it runs; a run that was stopped goes on where it was. Sources are fetched from where each
# project publishes them, or taken from --sources=FOLDER, which has the three checked out (abseil-cpp,
# protobuf, grpc). In both cases they have to be the commits of the releases that are named below.
# usage: build-grpc.sh [--sources=FOLDER] PREFIX
set -euo pipefail

# What each release is called, and its commit. gRPC's own tree names the other two.
declare -A releases=(
  [abseil-cpp]="20250512.1 76bb24329e8bf5f39704eb10d21b9a80befa7c81"
  [protobuf]="v31.1 74211c0dfc2777318ab53c2cd2c317a2ef9012de"
  [grpc]="v1.75.0 093085cc925e0d5aa6e92bc29e917f9bdc00add2")
declare -A owners=([abseil-cpp]=abseil [protobuf]=protocolbuffers [grpc]=grpc)

usage() { sed -n '4,/^# usage/s/^# \{0,1\}//p' "$0"; }
sources=
while [[ ${1:-} == --* ]]; do
  case "$1" in
    --help) usage; exit 0 ;;
    --sources=?*) sources=$(readlink -f "${1#*=}") ;;
    *) echo "$0: got $1, want --sources=FOLDER or --help" >&2; exit 2 ;;
  esac
  shift
done
if (($# != 1)); then
  usage >&2
  exit 2
fi

mkdir -p "$1/build"
prefix=$(readlink -f "$1")
work=$prefix/build

# Fetches the sources of $1 unless they are there, and checks their commit.
fetch() {
  local release commit folder found
  read -r release commit <<<"${releases[$1]}"
  folder=${sources:-$work}/$1
  if [[ -z $sources && ! -d $folder ]]; then
    echo "Fetching $1 $release"
    rm -rf "$folder.part"
    git -c advice.detachedHead=false clone --quiet --depth=1 --branch="$release" \
      "https://github.com/${owners[$1]}/$1" "$folder.part"
    mv "$folder.part" "$folder"
  fi
  found=$(git -C "$folder" rev-parse HEAD)
  if [[ $found != "$commit" ]]; then
    echo "$0: $folder is at commit $found, want $commit ($release)" >&2
    exit 1
  fi
}

build() {
  local source=$1 folder=${sources:-$work}/$1
  shift
  echo "Building $source ${releases[$source]% *}"
  cmake -S "$folder" -B "$work/$source-build" -G Ninja -DCMAKE_BUILD_TYPE=Release --no-warn-unused-cli \
    -DBUILD_SHARED_LIBS=ON -DCMAKE_CXX_STANDARD=20 -DCMAKE_PREFIX_PATH="$prefix" \
    -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_INSTALL_RPATH="\$ORIGIN:\$ORIGIN/../lib" \
    -DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache "$@" >"$work/$source.log"
  cmake --build "$work/$source-build" --target install >>"$work/$source.log" ||
    { tail -n 40 "$work/$source.log" >&2; exit 1; }
}

for source in abseil-cpp protobuf grpc; do fetch "$source"; done
"$(dirname "${BASH_SOURCE[0]}")/install-packages.sh" build
build abseil-cpp -DABSL_PROPAGATE_CXX_STD=ON -DABSL_BUILD_TESTING=OFF
build protobuf -Dprotobuf_BUILD_TESTS=OFF -Dprotobuf_LOCAL_DEPENDENCIES_ONLY=ON
# Debian's OpenSSL, c-ares, RE2 and zlib; of the generators of code only that of C++.
generators=()
for language in CSHARP NODE OBJECTIVE_C PHP PYTHON RUBY; do
  generators+=("-DgRPC_BUILD_GRPC_${language}_PLUGIN=OFF")
done
providers=()
for library in ABSL CARES PROTOBUF RE2 SSL ZLIB; do providers+=("-DgRPC_${library}_PROVIDER=package"); done
build grpc "${generators[@]}" "${providers[@]}" -DgRPC_DOWNLOAD_ARCHIVES=OFF -DgRPC_BUILD_TESTS=OFF
echo "$prefix has gRPC ${releases[grpc]% *}, Protobuf ${releases[protobuf]% *} and Abseil ${releases[abseil-cpp]% *}"
