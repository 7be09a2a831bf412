#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Feeds every target of the fuzzer, two at a time or as many as there are processors.
# usage: fuzz.sh PROGRAM [SECONDS [TARGET ...]]
#
# Without SECONDS: the seeds and 5,000 inputs for each target, or what 5 s are enough for; nearly the
# same ones in every run.
# Otherwise so many seconds for each, with other numbers in every run. What was found interesting
# stays in the folder fuzz beside PROGRAM's, and is where the next run begins.
set -euo pipefail

program=$(realpath "$1")
seconds=${2:-}
shift $(($# < 2 ? $# : 2))
folder=$(dirname "$(dirname "$program")")/fuzz
targets=("$@")
if ((${#targets[@]} == 0)); then mapfile -t targets < <("$program" --list); fi
export program folder seconds
# What is allocated by a size that a peer claims would be an error, and not end the process.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:allocator_may_return_null=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}

feed() {
  local target=$1 corpus=$folder/$1 bounds=(-seed=1 -runs=5000 -max_total_time=5)
  mkdir -p "$corpus" "$folder/found"
  "$program" "--target=$target" "--seeds=$corpus"
  if [[ -n $seconds ]]; then bounds=("-max_total_time=$seconds"); fi
  if ! "$program" "--target=$target" "${bounds[@]}" -max_len=8192 -timeout=20 -rss_limit_mb=2048 \
    -print_final_stats=1 "-artifact_prefix=$folder/found/$target-" "$corpus" \
    >"$folder/$target.log" 2>&1; then
    printf '\n==== %s\n' "$target"
    tail -n 60 "$folder/$target.log"
    return 1
  fi
  awk -v target="$target" '
    /^stat::number_of_executed_units/ { runs = $2 }
    /^stat::average_exec_per_sec/ { rate = $2 }
    /cov: / { for (i = 1; i < NF; i++) if ($i == "cov:") coverage = $(i + 1) }
    END { printf "%-12s %10d inputs, %6d a second, %5d edges\n", target, runs, rate, coverage }' \
    "$folder/$target.log"
}
export -f feed

printf '%s\n' "${targets[@]}" | xargs --max-args=1 --max-procs="$(nproc)" bash -euc 'feed "$1"' feed
