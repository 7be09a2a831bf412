#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes a smaller tree from an installed tree: the named programs, the libraries that the loader
# finds for them, at the same places, and a bill of materials of the new tree. Every file gets the
# time of SOURCE_DATE_EPOCH (0: the year 1970).
# usage: pick-programs.sh TREE NEW_TREE PROGRAM...
set -euo pipefail

if (($# < 3)); then
  echo "usage: $0 TREE NEW_TREE PROGRAM..." >&2
  exit 2
fi
tree=$(readlink -f "$1")
new_tree=$2
shift 2

fail() {
  echo "$*" >&2
  exit 1
}

mkdir -p "$new_tree/bin" "$new_tree/lib/gemmd"
for name in "$@"; do
  program="$tree/bin/$name"
  [[ -x $program ]] || fail "no bin/$name in the installed tree"
  cp "$program" "$new_tree/bin/"
  libraries=$(LD_TRACE_LOADED_OBJECTS=1 "$program")
  missing=$(sed -n 's/^\t*\(.*\) => not found/\1/p' <<<"$libraries")
  [[ -z $missing ]] || fail "bin/$name needs $missing, which is nowhere"
  while read -r path; do
    # Copied under the name that the loader asks for. Libraries outside the tree belong to the
    # target machine's own glibc.
    [[ $path == "$tree"/* ]] && cp --dereference "$tree/lib/gemmd/${path##*/}" "$new_tree/lib/gemmd/"
  done < <(sed -n 's/.* => \(.*\) (0x.*/\1/p' <<<"$libraries")
done
if [[ -d $tree/share ]]; then cp -r "$tree/share" "$new_tree/"; fi
# The table gives the origin of libraries by file name, and some names have changed.
table=share/doc/gemmd/libraries.tsv
[[ -r $tree/$table ]] || fail "$table: the installed tree has none, want one of a build with GEMMD_BUNDLE_LIBRARIES"
{
  grep '^inside' "$tree/$table" || true
  for library in "$new_tree"/lib/gemmd/*; do
    file=$(readlink -f "$tree/lib/gemmd/${library##*/}")
    awk -F '\t' -v OFS='\t' -v old="lib/gemmd/${file##*/}" -v new="lib/gemmd/${library##*/}" \
      '$1 == old { $1 = new; print }' "$tree/$table"
  done
} >"$new_tree/$table"
"$(dirname "$(readlink -f "$0")")/bill-of-materials.sh" write "$new_tree"
find "$new_tree" -exec touch --no-dereference --date="@${SOURCE_DATE_EPOCH:-0}" {} +
