#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# gemmbench as a program without a GPU: what it lists, and how it ends. usage: gemmbench_test.sh
# GEMMBENCH
set -euo pipefail
gemmbench=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# expect STATUS TEXT ARGUMENT...: checks that it ends with the status and prints the text.
expect() {
  local status=$1 words=$2 got=0
  shift 2
  CUDA_VISIBLE_DEVICES= "$gemmbench" "$@" >"$work/log" 2>&1 || got=$?
  if [[ $got != "$status" ]] || ! grep -qE -- "$words" "$work/log"; then
    echo "gemmbench $*: status $got, want $status; want the words: $words" >&2
    cat "$work/log" >&2
    exit 1
  fi
}

expect 0 '^mma\.m16n8k16\.f32\.bf16\.bf16\.f32_' --list --device cuda:0 --filter 'mma.*bf16*'
if grep -qv 'bf16' "$work/log"; then
  echo "--filter lets other rows through" >&2
  exit 1
fi
expect 0 '^openblas\.' --list
expect 0 'suite.*stands for|512x512x32768' --help
expect 1 '--device: (no GPU|this gemmbench was built without a CUDA toolkit)' --device cuda:0
expect 1 '--filter: got nothing.like.it' --device cuda:0 --filter nothing.like.it
expect 1 '--filter: got mma' --filter 'mma.*' # Of the CPU's rows none.
expect 2 '--shapes: got 4x4' --shapes 4x4
expect 2 '--output-type: got f33' --output-type f33
expect 2 '--shapes: got 2\*4x4x4, want one product' --shapes '2*4'
needs='--shapes: got 1000000x1000000x1000000, which needs [0-9]+ bytes of memory, want at most [0-9]+'
expect 1 "$needs" --filter openblas.f64.f64.f64 --shapes 1000000
expect 1 "$needs" --chip sm_90 --filter mma.m16n8k16.f64 --shapes 1000000
expect 1 'want sizes in bytes below 2\^63' --filter openblas.f64.f64.f64 --shapes 9223372036854775807
expect 2 '--device: got gpu0' --device gpu0
expect 2 '^--device: got 2 values, want 1$' --device cpu --device cpu
expect 2 '^--seconds: got nothing, want ' --seconds=
expect 2 '--orders: got rrx' --device cuda:0 --orders rrx
expect 0 ' ok$' --filter onednn.f32.f32.f32 --shapes 64 --seconds 0 --threads 1
expect 0 ' ok$' --chip sm_90 --filter mma.m16n8k16.f64 --shapes 32 --seconds 0 --threads 1

# The files that the options for reports name keep their type, and a failure to write is reported.
quick=(--filter onednn.f32.f32.f32 --shapes 64 --seconds 0 --threads 1)
for option in --json --save --csv; do
  ln -s /dev/full "$work/full"  # If this fails, only the link is lost.
  expect 1 "cannot write $work/full: No space left on device" "${quick[@]}" "$option" "$work/full"
  [[ -L $work/full ]]
  rm "$work/full"
  mkfifo "$work/pipe"
  cat "$work/pipe" >"$work/read" &
  expect 0 ' ok$' "${quick[@]}" "$option" "$work/pipe"
  wait $!
  [[ -p $work/pipe && -s $work/read ]]
  rm "$work/pipe"
  echo old >"$work/target"
  ln -s target "$work/link"
  ln -s new "$work/nowhere"
  echo theirs >"$work/link.partial"
  expect 0 ' ok$' "${quick[@]}" "$option" "$work/link"
  expect 0 ' ok$' "${quick[@]}" "$option" "$work/nowhere"
  [[ -L $work/link && -L $work/nowhere && $(<"$work/link.partial") == theirs ]]
  grep -q onednn "$work/target" && grep -q onednn "$work/new"
  # No part of a file is left if there is no room for it.
  cp "$work/target" "$work/old"
  (
    trap '' XFSZ
    ulimit -f 0
    ! "$gemmbench" "${quick[@]}" "$option" "$work/target" 2>/dev/null >/dev/null
  )
  cmp "$work/target" "$work/old"
  expect 2 "$option: got .*/b, want another file than that of --cublaslt" "$option" "$work/./b" --cublaslt "$work/b"
  rm "$work"/{link,nowhere,target,new,old,link.partial,read}
done
expect 2 '--csv: got .*/b, want another file than that of --save' --save "$work/b" --csv "$work/../${work##*/}/b"
[[ $(ls "$work") == log ]]
for report in --csv=/dev/null --json=-; do
  if "$gemmbench" "${quick[@]}" "$report" >/dev/full 2>"$work/log"; then
    echo "gemmbench does not notice that its output is full" >&2
    exit 1
  fi
  grep -q 'cannot write the standard output' "$work/log"
done
echo before >"$work/out"
"$gemmbench" "${quick[@]}" --csv /dev/stdout >>"$work/out"
grep -q before "$work/out" && grep -q 'kernel,' "$work/out"
echo "gemmbench says what it should"
