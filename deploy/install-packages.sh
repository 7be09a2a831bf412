#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the Debian 12 packages that gemmd needs: with `build` those to build and run it, with `test`
# also those to test it, with `deploy` also those to test its images and the rest of this folder. It
# does nothing where they are installed, and needs root or sudo only where something is missing.
set -euo pipefail

build_packages=(
  ca-certificates ccache cmake g++ ninja-build pkg-config
  libabsl-dev libcli11-dev libdnnl-dev libfmt-dev libgrpc++-dev libopenblas-openmp-dev
  libprotobuf-dev libspdlog-dev libssl-dev libyaml-dev nlohmann-json3-dev prometheus-cpp-dev protobuf-compiler
  protobuf-compiler-grpc)
# The package prometheus contains promtool, which checks the metrics.
test_packages=(
  chromium clang-14 clang-format-14 clang-tidy-14 git libclang-rt-14-dev libgmock-dev libgtest-dev
  libomp-14-dev llvm-14 prometheus python3 python3-pip python3-venv xz-utils)
deploy_packages=(buildah debootstrap procps strace systemd)

case "${1:-}" in
  build) packages=("${build_packages[@]}") ;;
  test) packages=("${build_packages[@]}" "${test_packages[@]}") ;;
  deploy) packages=("${build_packages[@]}" "${test_packages[@]}" "${deploy_packages[@]}") ;;
  *) echo "usage: $0 build|test|deploy" >&2; exit 2 ;;
esac

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null || true)
  [[ $status == "install ok installed" ]] || missing+=("$package")
done
if ((${#missing[@]} == 0)); then exit 0; fi

as_root=()
if ((EUID != 0)); then
  if ! command -v sudo >/dev/null; then
    echo "$0: run as root, or install: ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "Installing ${#missing[@]} packages: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { "${as_root[@]}" apt-get update &&
       "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
         apt-get install --yes --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
  tail -n 40 "$log" >&2
  exit 1
fi
