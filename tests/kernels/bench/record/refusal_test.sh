#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What vector_record does where the driver refuses a module or a kernel fails: it says so, in the
# summary too, and goes on.
# usage: refusal_test.sh VECTOR_RECORD FAKE_CUDA_FOLDER SCRATCH
set -euo pipefail
record=$1
export LD_LIBRARY_PATH=$2
scratch=$3
rm -rf "$scratch"

fail() {
  echo "$1" >&2
  exit 1
}

mkdir -p "$scratch"
status=0
"$record" "$scratch" --filter 'mma.m16n8k8.*' --cases 3 --families ordinary \
  >"$scratch/output.txt" 2>"$scratch/errors.txt" || status=$?
[[ $status == 1 ]] || fail "got status $status, want 1"
grep -q '^Fake, sm_80, driver .*, CUDA 12.8$' "$scratch/output.txt" || fail "the GPU is not named"
grep -q '^2 recorded, 2 refused, 3 cases each' "$scratch/output.txt" || fail "wrong counts"
python3 - "$scratch" <<'END'
import json
import pathlib
import struct
import sys

folder = pathlib.Path(sys.argv[1])
summary = json.loads((folder / "recording.json").read_text())
assert (summary["chip"], summary["target"], summary["gpu"]) == ("sm_80", "sm_80", "Fake"), summary
assert (summary["variants"], summary["cases"]) == (2, 3), summary
reasons = {refusal["variant"]: refusal["reason"] for refusal in summary["refused"]}
assert reasons == {
    "mma.m16n8k8.f32.bf16.bf16.f32": "cuModuleLoadDataEx: it failed: line 1: no bf16",
    "mma.m16n8k8.f32.tf32.tf32.f32": "kernel: it failed",
}, reasons
assert len(list(folder.glob("*.bin"))) == 2
# Nothing was executed, so D still holds what the recorder put there; A, B and C hold other values.
file = (folder / "mma.m16n8k8.f32.f16.f16.f32.bin").read_bytes()
cases, lanes, d_words = 3, 32, 4
words = struct.unpack(f"<{len(file) // 4}I", file)
d = cases * lanes * d_words
assert all(word == 0xDEADBEEF for word in words[-d:]) and words[-d - 1] != 0xDEADBEEF, words
END

status=0
"$record" "$scratch" --chip sm_90 2>"$scratch/errors.txt" || status=$?
[[ $status == 1 ]] || fail "another chip: got status $status, want 1"
grep -q 'the GPU is sm_80, want sm_90' "$scratch/errors.txt" || fail "another chip is not named"
