#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The product defines nothing twice, and planted duplicates are found.
# usage: one_definition_test.sh 'LIBRARY OF THE SERVER...' 'LIBRARY OF THE CLIENT...'
set -euo pipefail
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
"$folder/one_definition.sh"
"$folder/common_symbols.sh" "$1" "$2"

fail() {
  echo "$*" >&2
  exit 1
}
planted=$(mktemp -d)
trap 'rm -rf "$planted"' EXIT
mkdir -p "$planted"/{server/wire,client/load}
# define FILE NAMESPACE LINE: the file has that line in that namespace.
define() {
  printf '// Before.\nnamespace %s {\n\n%s\n\n}  // namespace %s\n' "$2" "$3" "$2" >"$planted/$1"
}
# Tests C++ lines with a definition that must not occur twice.
while IFS= read -r line; do
  define server/wire/part.h gemmd "$line"
  define client/load/part.cc gemmd::inner "$line"
  "$folder/one_definition.sh" "$planted" || fail "taken for the same in two namespaces: $line"
  define client/load/part.cc gemmd "$line"
  if "$folder/one_definition.sh" "$planted" >"$planted/told"; then fail "not found: $line"; fi
  grep -q '^gemmd::Part is defined in\|^gemmd::kPart is defined in' "$planted/told" ||
    fail "$line is told as $(cat "$planted/told")"
done <<'END'
struct Part {
class Part final : public Whole {
template <typename T> struct Part {
enum Part : size_t {
enum class Part : uint8_t { kOne, kTwo };
union Part {
using Part = int;
inline constexpr size_t kPart = 6;
constexpr int kPart[] = {1, 2};
inline constexpr std::array kPart = {"one",
const Factory kPart = {.name = "part"};
END
# Definitions that may occur twice.
while IFS= read -r line; do
  define server/wire/part.h gemmd "struct Other {"$'\n'"};"$'\n'"$line"
  define client/load/part.cc gemmd "$line"
  "$folder/one_definition.sh" "$planted" || fail "taken for a definition: $line"
done <<'END'
struct Part;
enum class Part : uint8_t;
template <typename T> class Part;
struct Part<int> {
extern const Factory kPart;
END
define client/load/part.cc "" "struct Other {"
"$folder/one_definition.sh" "$planted" || fail "taken for the same: one in an anonymous namespace"

if "$folder/common_symbols.sh" "$1" "$1" >/dev/null; then fail "libraries have nothing in common with themselves"; fi
echo "nothing is defined twice, and all that was planted is found"
