#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Prints the symbols of namespace gemmd that both of two sets of static libraries define, inline
# functions among them, which the linker takes from either without a word. Messages are left out, and
# what kernels/option has for the options of all programs: both sides have them from one place.
# usage: common_symbols.sh 'LIBRARY...' 'LIBRARY...'. Exits 1 where there is one.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Names as in the object files, where a namespace has one spelling. What is in an anonymous namespace
# has no symbol that another file sees.
symbols() {
  # shellcheck disable=SC2086
  nm --defined-only --extern-only $1 | awk 'NF == 3 { print $3 }' |
    grep -E '^_Z[A-Z]*K?5gemmd' | grep -vE '^_Z[A-Z]*K?5gemmd(2v1|6option)|_GLOBAL__N_1' | sort -u
}
symbols "$1" >"$work/first"
symbols "$2" >"$work/second"
comm -12 "$work/first" "$work/second" | c++filt >"$work/common"
cat "$work/common"
[[ ! -s $work/common ]]
