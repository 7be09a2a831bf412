#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Feeds every target of the fuzzer, two at a time or as many as there are processors.
# usage: fuzz.sh PROGRAM [SECONDS|INPUTSx [TARGET ...]]
#
# Without SECONDS: the seeds and 5,000 inputs for each target, or what 5 s are enough for; nearly the
# same ones in every run.
# Otherwise so many seconds, or inputs (10000000x), for each, with other numbers in every run. What
# was found interesting stays in the folder fuzz beside PROGRAM's, and is where the next run begins.
#
# Ends with the lines of the parsers that all inputs together have reached, those that earlier runs
# kept included.
set -euo pipefail

program=$(realpath "$1")
bound=${2:-}
shift $(($# < 2 ? $# : 2))
folder=$(dirname "$(dirname "$program")")/fuzz
targets=("$@")
if ((${#targets[@]} == 0)); then
  mapfile -t targets < <(LLVM_PROFILE_FILE=/dev/null "$program" --list)
fi
export program folder bound
# The files that parse bytes of peers, of workers and of files.
parsers=(
  client/{product,transfer}.cc client/load/{load_session,mix,open_loop,slo_search}.cc
  client/load/report/compare.cc client/matrix/{npy,safetensors}.cc kernels/problem.cc
  server/crossing/{channel,job_layout,protocol}.cc
  server/kserve/{convert_infer,infer_message,models}.cc
  server/metrics/http.cc server/product/spans.cc
  server/trust/{identity,json_text,trust,web_token}.cc
  server/wire/{admin_service,convert,frame_meter,header_paths,incoming,listing}.cc
  server/wire/{reflection_service,tensor_convert}.cc
)
# An allocation whose size a peer claims must come back as an error, and not end the process. All
# memory that one input frees stays poisoned until the next input; a larger quarantine only costs
# memory and time.
own_options=detect_leaks=1:allocator_may_return_null=1:quarantine_size_mb=16
export ASAN_OPTIONS=${ASAN_OPTIONS:-$own_options}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}

feed() {
  local target=$1 corpus=$folder/$1 bounds=(-seed=1 -runs=5000 -max_total_time=5)
  mkdir -p "$corpus" "$folder/found"
  LLVM_PROFILE_FILE=/dev/null "$program" "--target=$target" "--seeds=$corpus"
  case $bound in
    "") ;;
    *x) bounds=("-runs=${bound%x}") ;;
    *) bounds=("-max_total_time=$bound") ;;
  esac
  if ! LLVM_PROFILE_FILE="$folder/$target.profraw" "$program" "--target=$target" "${bounds[@]}" \
    -max_len=8192 -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 \
    "-artifact_prefix=$folder/found/$target-" "$corpus" >"$folder/$target.log" 2>&1; then
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

# Prints each file with lines that no input has reached, and the total. The program contains no
# folder
# of this machine, so llvm-cov would not find files by their paths here.
llvm-profdata-14 merge --sparse --output="$folder/all.profdata" "$folder"/*.profraw
llvm-cov-14 report "$program" --instr-profile="$folder/all.profdata" --show-branch-summary=false \
  --show-region-summary=false |
  awk -v parsers="${parsers[*]}" '
    function tell(name, lines, missed) {
      printf "%-40s %5d lines, %4d not reached, %.2f %%\n", name, lines, missed,
        100 * (lines - missed) / lines
    }
    BEGIN { wanted = split(parsers, names, " "); for (i in names) is_parser[names[i]] = 1 }
    $1 in is_parser { ++found; lines += $5; missed += $6; if ($6 > 0) tell($1, $5, $6) }
    END {
      tell("TOTAL", lines, missed)
      if (found != wanted) { print "got " found " files of the list, want " wanted; exit 1 }
    }'
