#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Plays every recording through the simulator, and sees the check fail where it must.
# usage: vectors_test.sh VECTOR_CHECK SCRATCH
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
check=$1
scratch=$2
rm -rf "$scratch"

# expect STATUS LAST_LINE ARGUMENT...: runs the check.
expect() {
  local status=$1 line=$2 got=0
  shift 2
  "$check" "$@" >"$scratch/output.txt" || got=$?
  if [[ $got != "$status" || $(tail -n 1 "$scratch/output.txt") != "$line" ]]; then
    grep FAILED "$scratch/output.txt" | head -n 20 || true
    tail -n 1 "$scratch/output.txt"
    echo "vector_check $*: got status $got, want $status and: $line" >&2
    exit 1
  fi
}

for recording in h200_sm90a:158 h200_sm90a_more:14 h200_sm90a_directed:172 \
  h200_sm90a_wmma_wgmma:190 h200_sm90a_wmma_wgmma_directed:190; do
  name=${recording%:*}
  mkdir -p "$scratch/$name"
  tar -xf "$here/$name.tar.xz" -C "$scratch/$name"
  expect 0 "${recording#*:} passed, 0 failed" "$scratch/$name"
done

# One wrong bit of D, an unknown name, half a case, and no file at all.
bad=$scratch/bad
mkdir "$bad"
sample=mma.m16n8k16.f32.bf16.bf16.f32.bin
cp "$scratch/h200_sm90a/$sample" "$bad"
expect 0 "1 passed, 0 failed" "$bad"
printf '\x55' | dd of="$bad/$sample" bs=1 seek=$(($(stat -c %s "$bad/$sample") - 3)) conv=notrunc status=none
expect 1 "0 passed, 1 failed" "$bad"
mv "$bad/$sample" "$bad/mma.m16n8k17.f32.bf16.bf16.f32.bin"
expect 1 "0 passed, 1 failed" "$bad"
rm "$bad"/*
head -c 1000 "$scratch/h200_sm90a/$sample" >"$bad/$sample"
expect 1 "0 passed, 1 failed" "$bad"
rm "$bad/$sample"
expect 1 "" "$bad"
# With the arithmetic of another chip the check must fail.
cp "$scratch/h200_sm90a/$sample" "$bad"
expect 1 "0 passed, 1 failed" --chip sm_80 "$bad"
echo "724 recordings agree to the bit"
