#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The kernel table in README.md is the one that a running daemon's catalogue gives.
# usage: readme_kernels.sh GEMMD GEMMCTL [--update]
set -euo pipefail
gemmd=$1
gemmctl=$2
readme=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/README.md

work=$(mktemp -d)
"$gemmd" --listen="unix:$work/gemmd.sock" --ready-file="$work/ready" --lame-duck=0s 2>"$work/log" &
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

begin='<!-- kernels: begin, written by tests/end_to_end/readme_kernels.sh --update -->'
end='<!-- kernels: end -->'
table=$("$gemmctl" --address "unix:$work/gemmd.sock" kernels --markdown)
{
  awk -v mark="$begin" '{ print } $0 == mark { exit }' "$readme"
  printf '<details><summary>%d kernels</summary>\n\n%s\n\n</details>\n' \
    $(($(wc -l <<<"$table") - 2)) "$table"
  awk -v mark="$end" '$0 == mark { found = 1 } found { print }' "$readme"
} >"$work/README.md"

if [[ ${3:-} == --update ]]; then
  cp "$work/README.md" "$readme"
elif ! diff -u "$readme" "$work/README.md"; then
  echo "README.md's kernel table is not the catalogue's: run $0 GEMMD GEMMCTL --update" >&2
  exit 1
fi
