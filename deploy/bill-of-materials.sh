#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Writes what an installed tree consists of, in the form of SPDX 2.3, to share/doc/gemmd/sbom.spdx.json.
#
#   find   looks where bundled libraries are from, which it keeps in libraries.tsv beside the document:
#          on the machine that built the tree, whose packages have the same files, byte by byte
#   write  takes that table as it is: for a tree with fewer programs, on any machine
#
# SOURCE_DATE_EPOCH, in seconds, is when the document says that it was made (0: in 1970), so that the
# same tree gives the same bytes. GEMMD_CUDA_VERSION is that of the runtime inside gemmd-worker.
# usage: bill-of-materials.sh find|write TREE
set -euo pipefail
export LC_ALL=C

fail() {
  echo "$*" >&2
  exit 1
}

[[ $# == 2 && $1 =~ ^(find|write)$ && -d $2 ]] || fail "usage: $0 find|write TREE"
tree=$(readlink -f "$2")
documents=$tree/share/doc/gemmd
document=$documents/sbom.spdx.json
table=$documents/libraries.tsv
# Header-only packages whose code is compiled into the programs.
headers=(libcli11-dev nlohmann-json3-dev)

# Names of licences in Debian's files, and those of SPDX.
declare -A spdx_licences=(
  [apache-2.0]=Apache-2.0 [bsd-2-clause]=BSD-2-Clause [bsd-3-clause]=BSD-3-Clause [expat]=MIT [mit]=MIT
  [zlib]=Zlib [isc]=ISC [gpl-2+]=GPL-2.0-or-later [gpl-3+]=GPL-3.0-or-later [lgpl-2.1+]=LGPL-2.1-or-later)

# The licences that a package's copyright file names, except for Debian's own additions: NAME;NAME.
licences_of() {
  local copyright=/usr/share/doc/$1/copyright
  [[ -r $copyright ]] || return 0
  awk 'BEGIN { RS = ""; FS = "\n" }
    /^Files:/ && !/^Files: *debian/ {
      for (i = 1; i <= NF; i++) if (sub(/^License: */, "", $i) && $i != "") print $i
    }' "$copyright" | sed 's/["\\\t;]//g; s/ *$//' | sort -u | paste -sd';'
}

# Sets the package's columns of the table: name, version, architecture, homepage, licences as Debian
# names them. Unknown values are a hyphen. The columns are cached, as some packages have dozens of
# libraries.
declare -A columns=()
set_columns() {
  local facts licences
  [[ -z ${columns[$1]:-} ]] || return 0
  facts=$(dpkg-query --show --showformat='${Package}\t${Version}\t${Architecture}\t${Homepage}' "$1")
  [[ $facts != *$'\t' ]] || facts+=-
  licences=$(licences_of "${1%%:*}")
  columns[$1]=$facts$'\t'${licences:--}
}

# A package may contain a different file with the same name.
find_libraries() {
  local files=() owners="" file name owner path package
  mapfile -t files < <(cd "$tree" && find lib/gemmd -type f 2>/dev/null | sort)
  if command -v dpkg-query >/dev/null; then
    if ((${#files[@]})); then
      owners=$(dpkg-query --search "${files[@]/#lib\/gemmd/*}" 2>/dev/null || true)
    fi
    for package in "${headers[@]}"; do
      if dpkg-query --show "$package" >/dev/null 2>&1; then
        set_columns "$package"
        printf 'inside\t%s\n' "${columns[$package]}"
      fi
    done
  fi
  if [[ -e $tree/bin/gemmd-worker ]]; then
    printf 'inside\tcuda-runtime\t%s\t-\t-\t-\n' "${GEMMD_CUDA_VERSION:--}"
  fi
  for file in "${files[@]}"; do
    name=${file##*/} package=
    while IFS= read -r owner; do
      path=${owner#*: }
      if [[ ${path##*/} == "$name" ]] && cmp -s "$tree/$file" "$path"; then package=${owner%%: *}; fi
    done <<<"$owners"
    if [[ $package ]]; then
      set_columns "$package"
      printf '%s\t%s\n' "$file" "${columns[$package]}"
    else
      path=${name#*.so}
      printf '%s\t%s\t%s\t-\t-\t-\n' "$file" "${name%%.so*}" "$([[ $path ]] && echo "${path#.}" || echo -)"
    fi
  done
}

version_of_gemmd() {
  local program
  for program in gemmd gemmctl gemmload; do
    if [[ -x $tree/bin/$program ]]; then "$tree/bin/$program" --version && return; fi
  done
  fail "bin: got no program of gemmd that runs, want one that tells its version"
}

# An identifier of SPDX has letters, digits, dots and hyphens alone. The answer is in $id, as a process
# for each would take seconds.
set_id() { id=SPDXRef-${1//[^A-Za-z0-9.]/-}; }

quote() {
  quoted=${1//\\/\\\\}
  quoted=\"${quoted//\"/\\\"}\"
}

# Prints its input lines as a JSON list that is a member called $1.
listed() { printf '  "%s": [\n' "$1" && sed '$!s/$/,/; s/^/    /' && printf '  ]'; }

package_entry() {
  local package=$1 version=$2 architecture=$3 homepage=$4 licences=$5 declared="" name known names
  set_id "package-$package"
  printf '{"SPDXID": "%s", "name": "%s", "versionInfo": "%s", "filesAnalyzed": false' "$id" "$package" "${version/#-/unknown}"
  printf ', "downloadLocation": "NOASSERTION", "licenseConcluded": "NOASSERTION", "copyrightText": "NOASSERTION"'
  if [[ $homepage != - ]]; then
    quote "$homepage"
    printf ', "homepage": %s' "$quoted"
  fi
  IFS=';' read -r -a names <<<"$licences"
  for name in "${names[@]}"; do
    known=${spdx_licences[${name,,}]:-}
    [[ $known ]] || { declared=NOASSERTION; break; }
    [[ " $declared " == *" $known "* ]] || declared+=${declared:+ AND }$known
  done
  printf ', "licenseDeclared": "%s"' "${declared:-NOASSERTION}"
  if [[ $licences != - ]]; then printf ', "licenseComments": "debian/copyright names %s"' "${licences//;/, }"; fi
  if [[ $architecture == - ]]; then
    printf ', "supplier": "NOASSERTION"}\n'
    return
  fi
  version=${version//+/%2B}
  printf ', "supplier": "Organization: Debian", "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER"'
  printf ', "referenceType": "purl", "referenceLocator": "pkg:deb/debian/%s@%s?arch=%s"}]}\n' "${package//+/%2B}" "${version//:/%3A}" "$architecture"
}

relationship() {
  printf '{"spdxElementId": "%s", "relationshipType": "%s", "relatedSpdxElement": "%s"}\n' "$@"
}

write_files() {
  local sha1 sha256 path
  while read -r sha1 path sha256 _; do
    set_id "file-$path"
    quote "./$path"
    printf '{"SPDXID": "%s", "fileName": %s, "checksums": [{"algorithm": "SHA1", "checksumValue": "%s"}' "$id" "$quoted" "$sha1"
    printf ', {"algorithm": "SHA256", "checksumValue": "%s"}]' "$sha256"
    printf ', "licenseConcluded": "NOASSERTION", "licenseInfoInFiles": ["NOASSERTION"], "copyrightText": "NOASSERTION"}\n'
  done <<<"$sums"
}

write_relationships() {
  local path package file
  relationship SPDXRef-DOCUMENT DESCRIBES SPDXRef-gemmd
  while read -r _ path _; do
    set_id "file-$path"
    relationship SPDXRef-gemmd CONTAINS "$id"
  done <<<"$sums"
  while IFS=$'\t' read -r path package _; do
    set_id "file-$path" && file=$id
    set_id "package-$package"
    if [[ $path == inside ]]; then
      relationship SPDXRef-gemmd STATIC_LINK "$id"
    else
      relationship SPDXRef-gemmd DEPENDS_ON "$id"
      relationship "$file" EXPANDED_FROM_ARCHIVE "$id"
    fi
  done <<<"$kept" | sort -u
}

write_document() {
  local told version commit code fields
  told=$(version_of_gemmd)
  version=$(sed -n '1s/.* //p' <<<"$told") commit=$(sed -n 's/^commit //p' <<<"$told")
  code=$(cut -d ' ' -f 1 <<<"$sums" | sort | tr -d '\n' | sha1sum | cut -d ' ' -f 1)
  printf '{\n  "spdxVersion": "SPDX-2.3",\n  "SPDXID": "SPDXRef-DOCUMENT",\n  "dataLicense": "CC0-1.0",\n'
  printf '  "name": "gemmd-%s",\n  "documentNamespace": "https://gemmd.invalid/spdx/%s/%s/%s",\n' "$version" "$version" "$commit" "$code"
  printf '  "creationInfo": {"created": "%s", "creators": ["Tool: gemmd-bill-of-materials"]},\n' \
    "$(date --utc --date="@${SOURCE_DATE_EPOCH:-0}" +%Y-%m-%dT%H:%M:%SZ)"
  {
    printf '{"SPDXID": "SPDXRef-gemmd", "name": "gemmd", "versionInfo": "%s", "comment": "commit %s"' "$version" "$commit"
    printf ', "downloadLocation": "NOASSERTION", "supplier": "NOASSERTION", "licenseConcluded": "NOASSERTION"'
    printf ', "licenseDeclared": "Apache-2.0", "licenseInfoFromFiles": ["NOASSERTION"], "copyrightText": "NOASSERTION"'
    printf ', "packageVerificationCode": {"packageVerificationCodeValue": "%s"' "$code"
    printf ', "packageVerificationCodeExcludedFiles": ["./share/doc/gemmd/sbom.spdx.json"]}}\n'
    cut -f 2- <<<"$kept" | sort -u | while IFS=$'\t' read -r -a fields; do package_entry "${fields[@]}"; done
  } | listed packages && echo ,
  write_files | listed files && echo ,
  write_relationships | listed relationships && printf '\n}\n'
}

mkdir -p "$documents"
if [[ $1 == find ]]; then find_libraries >"$table"; fi
[[ -r $table ]] || fail "$table: got none, want the table that 'find' makes where the tree is built"
rm -f "$document"
"$(dirname "$(readlink -f "$0")")/exploitability.sh" "$tree"  # Its document is in the bill.
# The table's lines for the files that exist, and SHA-1, path and SHA-256 of each file.
kept=$(while IFS=$'\t' read -r path package rest; do
  if [[ $path == inside && ($package != cuda-runtime || -e $tree/bin/gemmd-worker) || -f $tree/$path ]]; then
    printf '%s\t%s\t%s\n' "$path" "$package" "$rest"
  fi
done <"$table")
cd "$tree"
shopt -s nullglob
mapfile -t files < <(find bin/gemm* lib/gemmd share/doc/gemmd share/man/man?/gemm* share/*/*/*gemmctl -type f | sort)
sums=$(paste -d ' ' <(sha1sum "${files[@]}") <(sha256sum "${files[@]}") | tr -s ' ')
for path in "${files[@]}"; do
  [[ $path != lib/gemmd/* || $'\n'$kept == *$'\n'"$path"$'\t'* ]] ||
    fail "$path: got a library that $table does not name, want the tree that 'find' saw"
done
write_document >"$document.part"
mv "$document.part" "$document"
