#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The daemon on a GPU whose kernels go wrong: who is told what, and how soon the device is back.
# usage: worker_faults.sh FOLDER [WORKER]: the folder holds gemmd and gemmctl; the worker is
# gemmd-scripted-worker beside them unless it is named. Ends with 0 where everything is as it must
# be.
set -euo pipefail
folder=$1
worker=${2:-$folder/gemmd-scripted-worker}
work=$(mktemp -d)
export GEMMD_WORKER_SCRIPT=$work/script
"$folder/gemmd" --devices=cuda:0 --worker-binary="$worker" --listen="unix:$work/socket" \
  --ready-file="$work/ready" --lame-duck=1ms --gpu-memory-bytes=256MiB 2>"$work/log" &
daemon=$!
trap 'kill -9 "$daemon" 2>/dev/null || true; cat "$work/log"; rm -rf "$work"' EXIT

now_ms() { echo $(($(date +%s%N) / 1000000)); }
ctl() { "$folder/gemmctl" --address="unix:$work/socket" --timeout=30 "$@"; }
multiply() {
  ctl multiply --random=256,255,254 --type=f16 --kernel=mma.m16n8k16.f32.f16.f16.f32 --verify \
    --device=cuda:0 "$@" 2>&1
}
worker_pid() { pgrep -P "$daemon"; }
fail() {
  echo "FAILED: $*"
  exit 1
}
script() {
  echo "$1" >"$work/part"
  mv "$work/part" "$work/script"
}
# expect TEXT: a product now fails with it.
expect() {
  local output
  if output=$(multiply); then fail "a product went well: $output"; fi
  [[ $output == *"$1"* ]] || fail "got $output, want $1"
}
# Waits until a product is right again, for at most 15 s.
await_back() {
  local start
  start=$(now_ms)
  until multiply >/dev/null; do
    (($(now_ms) - start < 15000)) || fail "not back within 15 s: $1"
    sleep 0.01
  done
  echo "$1: back after $(($(now_ms) - start)) ms"
}

start=$(now_ms)
until [[ -e $work/ready ]]; do
  kill -0 "$daemon" || fail "the daemon ended"
  sleep 0.01
done
echo "start: $(($(now_ms) - start)) ms"
ctl devices
multiply
ctl health

before=$(worker_pid)
script "Launch 1 memory"
expect RESOURCE_EXHAUSTED
await_back "out of memory"
[[ $(worker_pid) == "$before" ]] || fail "the worker did not survive"

for fault in illegal_address endless_loop abort; do
  script "Launch 1 $fault"
  fault_start=$(now_ms)
  expect ABORTED
  echo "$fault: answered after $(($(now_ms) - fault_start)) ms"
  await_back "$fault"
done

kill -9 "$(worker_pid)"
await_back "kill -9"
kill -9 "$(worker_pid)"
await_back "kill -9, the fifth restart"
kill -9 "$(worker_pid)"
until grep -q 'out of service' "$work/log"; do sleep 0.01; done
expect "out of service"
if ctl health; then fail "health says that all is well"; fi
kill -TERM "$daemon"
wait "$daemon" || fail "the daemon ended with $?"
echo "everything is as it must be"
