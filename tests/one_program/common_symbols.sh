#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Prints the symbols of namespace gemmd that both of two sets of static libraries define, inline
# functions among them, which the linker takes from either without a word. Messages are left out,
# what kernels/option has for the options of all programs, and inline functions and constants that
# headers of kernels/matrix and kernels/mma have: both sides have them from one place.
# usage: common_symbols.sh 'LIBRARY...' 'LIBRARY...'. Exits 1 where there is one.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Names are compared as object files have them, since those spell a namespace in only one way. A
# name in
# an anonymous namespace has no symbol that other files see.
symbols() {
  # shellcheck disable=SC2086
  nm --defined-only --extern-only $1 | awk 'NF == 3 { print ($2 ~ /[WVu]/ ? "inline" : "own"), $3 }' |
    sort -u
}
of_gemmd() {
  awk '{ print $2 }' "$1" |
    grep -E '^_Z[A-Z]*K?5gemmd' | grep -vE '^_Z[A-Z]*K?5gemmd(2v1|6option)|_GLOBAL__N_1' | sort -u
}
symbols "$1" >"$work/first"
symbols "$2" >"$work/second"
comm -12 <(of_gemmd "$work/first") <(of_gemmd "$work/second") >"$work/both"
root="$(dirname "${BASH_SOURCE[0]}")/../.."
grep -ohE '[A-Za-z_][A-Za-z0-9_]*' "$root"/kernels/{matrix,mma}/*.h | sort -u >"$work/shared"
awk '$1 == "own" { print $2 }' "$work/first" "$work/second" | sort -u >"$work/own"
paste -d ' ' "$work/both" <(c++filt <"$work/both") |
  awk -v shared="$work/shared" -v own="$work/own" '
    BEGIN {
      while ((getline word < shared) > 0) is_shared[word]
      while ((getline word < own) > 0) is_own[word]
    }
    {
      symbol = $1
      sub("^[^ ]* ", "")
      match($0, "gemmd::[A-Za-z0-9_:]+")
      name = substr($0, RSTART, RLENGTH)
      sub(".*:", "", name)
      if (symbol in is_own || !(name in is_shared)) print
    }' >"$work/common"
cat "$work/common"
[[ ! -s $work/common ]]
