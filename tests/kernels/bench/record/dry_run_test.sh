#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the programs together: vector_check must accept what vector_record writes without a GPU.
# usage: dry_run_test.sh VECTOR_RECORD VECTOR_CHECK SCRATCH
set -euo pipefail
record=$1
check=$2
scratch=$3
rm -rf "$scratch"

fail() {
  echo "$1" >&2
  exit 1
}

"$record" "$scratch" --dry-run --chip sm_89 --filter '*m16n8k16*' --seed 1
[[ $("$check" "$scratch" --chip sm_89 | tail -n 1) == *" passed, 0 failed" ]] ||
  fail "the recording does not play back"
python3 - "$scratch" <<'END'
import json
import pathlib
import sys

folder = pathlib.Path(sys.argv[1])
summary = json.loads((folder / "recording.json").read_text())
files = list(folder.glob("*.bin"))
assert summary["chip"] == "sm_89" and summary["gpu"] == "simulator", summary
assert summary["variants"] == len(files) > 0, (summary, len(files))
assert summary["cases"] == 20 and summary["seed"] == 1 and summary["refused"] == [], summary
END

file=$(find "$scratch" -name '*.bin' | sort | head -n 1)
printf '\x55' | dd of="$file" bs=1 seek=$(($(stat -c %s "$file") - 3)) conv=notrunc status=none
"$check" "$scratch" --chip sm_89 >"$scratch/output.txt" && fail "a wrong bit goes unseen"
[[ $(tail -n 1 "$scratch/output.txt") == *" passed, 1 failed" ]] || fail "want one failure"

status=0
"$record" "$scratch" --dry-run --filter nothing 2>"$scratch/output.txt" || status=$?
[[ $status == 1 ]] || fail "no variant: got status $status, want 1"
status=0
"$record" "$scratch" --chip sm_42 --dry-run 2>"$scratch/output.txt" || status=$?
[[ $status == 2 ]] || fail "unknown chip: got status $status, want 2"
