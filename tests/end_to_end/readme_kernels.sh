#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The tables in README.md, of the CPU kernels and of the families of instructions, are those that a
# running daemon gives. With --update it writes them.
# usage: readme_kernels.sh GEMMD GEMMCTL [--update | README]
set -euo pipefail
gemmd=$1
gemmctl=$2
readme=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/README.md
if [[ -n ${3:-} && $3 != --update ]]; then readme=$3; fi

work=$(mktemp -d)
"$gemmd" --devices=cpu --listen="unix:$work/gemmd.sock" --ready-file="$work/ready" --lame-duck=0s \
  2>"$work/log" &
daemon=$!
stop() {
  kill -TERM "$daemon" 2>/dev/null && wait "$daemon" || true
  rm -rf "$work"
}
trap stop EXIT
for _ in $(seq 600); do
  [[ -f $work/ready ]] && break
  kill -0 "$daemon" || { cat "$work/log" >&2; exit 1; }
  sleep 0.1
done
ctl() { "$gemmctl" --address "unix:$work/gemmd.sock" "$@"; }

# replace NAME FILE: standard input with what lies between the marks NAME taken from FILE.
replace() {
  local begin="<!-- $1: begin, written by tests/end_to_end/readme_kernels.sh --update -->"
  awk -v begin="$begin" -v end="<!-- $1: end -->" -v file="$2" '
    $0 == end { inside = 0; ++found }
    !inside { print }
    $0 == begin { inside = 1; ++found; while ((getline line < file) > 0) print line }
    END { exit found != 2 }' && return
  echo "README.md has not one pair of marks for $1" >&2
  return 1
}

table=$(ctl kernels --device cpu --all --markdown)
printf '<details><summary>%d kernels</summary>\n\n%s\n\n</details>\n' \
  $(($(wc -l <<<"$table") - 2)) "$table" >"$work/kernels"
ctl instructions --families --markdown >"$work/instructions"
replace kernels "$work/kernels" <"$readme" | replace instructions "$work/instructions" \
  >"$work/README.md"

if [[ ${3:-} == --update ]]; then
  cp "$work/README.md" "$readme"
elif ! diff -u "$readme" "$work/README.md"; then
  echo "README.md's tables are not the server's: run $0 GEMMD GEMMCTL --update" >&2
  exit 1
fi
