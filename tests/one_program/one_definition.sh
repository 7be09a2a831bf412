#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Checks that each type, alias and constant of a named namespace is defined in one file of the whole
# product, so that any two parts of it can be linked into one program. Names in anonymous namespaces
# are the file's own. Functions are compared by common_symbols.sh.
# usage: one_definition.sh [ROOT]. Prints each name that has two definitions; exits 1 where there is
# one.
set -euo pipefail
cd "${1:-$(dirname "${BASH_SOURCE[0]}")/../..}"

folders=()
for folder in kernels server client; do [[ -d $folder ]] && folders+=("$folder"); done
mapfile -t files < <(find "${folders[@]}" -type f \
  \( -name '*.h' -o -name '*.cc' -o -name '*.cuh' -o -name '*.cu' \) | sort)
awk '
  FNR == 1 { depth = 0 }
  # Namespaces open and end at the start of a line, as clang-format writes them.
  /^(inline )?namespace / {
    name = $0
    sub("^(inline )?namespace *", "", name)
    sub(" *[{].*", "", name)
    space[++depth] = name
    next
  }
  /^}  \/\/ namespace/ { --depth; next }
  depth == 0 { next }
  {
    qualified = ""
    for (i = 1; i <= depth; i++) {
      if (space[i] == "") next
      qualified = qualified space[i] "::"
    }
    rest = $0
    sub("^template *<.*> *", "", rest)
    name = ""
    if (rest ~ "^(class|struct|union|enum) ") {
      # A declaration ends before the brace with which a definition begins.
      if (rest ~ ";[^{]*$" && rest !~ "[{]") next
      sub("^enum (class|struct) ", "enum ", rest)
      sub("^[a-z]+ +(alignas *[(][^)]*[)] *)?", "", rest)
      # A specialization has the name of its template, which is defined elsewhere.
      if (rest ~ "^[A-Za-z0-9_:]+<") next
      name = rest
      sub("[^A-Za-z0-9_:].*", "", name)
      sub(":+$", "", name)
    } else if (rest ~ "^using [A-Za-z0-9_]+ *=") {
      name = rest
      sub("^using ", "", name)
      sub(" *=.*", "", name)
    } else if (rest ~ "^(inline |constexpr |constinit |const )+.*[ *&]k[A-Z][A-Za-z0-9]*(\\[.*\\])? *[={;]") {
      name = rest
      sub(" *[={;].*", "", name)
      sub("\\[.*", "", name)
      sub(".*[ *&]", "", name)
    }
    if (name == "") next
    names++
    name = qualified name
    if (name in place && place[name] != FILENAME) {
      print name " is defined in " place[name] " and in " FILENAME
      twice++
    }
    place[name] = FILENAME
  }
  END {
    if (names == 0) print "no definitions were found"
    exit names == 0 || twice > 0
  }' "${files[@]}"
