#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Assembles the modules that vector_record gives to the driver: all of the default selection for
# sm_90, of other chips one in so many; those of part I of N, from 0. Exits 77 where there is no ptxas.
# usage: assemble_test.sh VECTOR_RECORD SCRATCH I/N
set -euo pipefail
record=$1
scratch=$2
part=${3%/*} parts=${3#*/}
command -v ptxas >/dev/null || exit 77
rm -rf "$scratch"
mkdir -p "$scratch"

# assemble FILE: prints the file's name if it does not assemble.
assemble() {
  local target
  target=$(sed -n 's/^\.target //p' "$1")
  ptxas -arch="$target" -o /dev/null "$1" >&2 || echo "$1"
}
export -f assemble

for chip in sm_90:1 sm_80:12 sm_89:12 sm_120:12; do
  "$record" "$scratch/${chip%:*}" --ptx --chip "${chip%:*}" >/dev/null
  find "$scratch/${chip%:*}" -name '*.ptx' | sort | awk "NR % ${chip#*:} == 0"
done | awk "NR % $parts == $part" >"$scratch/modules.txt"
[[ -s $scratch/modules.txt ]] || exit 1
# Checks that a faulty module makes the check fail.
sed 's/^  mma\.sync.*/  mma.sync.aligned.m16n8k17;/' \
  "$scratch/sm_80/mma.m16n8k16.f32.f16.f16.f32.ptx" >"$scratch/wrong.ptx"
[[ -n $(assemble "$scratch/wrong.ptx" 2>/dev/null) ]] || {
  echo "a wrong module was assembled" >&2
  exit 1
}

failed=$(xargs -a "$scratch/modules.txt" -P "$(nproc)" -I{} bash -c 'assemble {}')
[[ -z $failed ]] || {
  echo "$failed" >&2
  exit 1
}
echo "$(wc -l <"$scratch/modules.txt") modules assembled"
