#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The tree respects its walls; the table of layering.sh has the walls that the design requires; and
# the check finds every violation: each kind of header is planted in each folder.
set -euo pipefail
tests=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
"$tests/layering.sh" "$tests/.."

planted=$(mktemp -d)
trap 'rm -rf "$planted"' EXIT
fail() {
  echo "$*" >&2
  exit 1
}

declare -A may=()
folders=()
targets=()
while read -r -a line; do
  folders+=("${line[0]}")
  for name in "${line[@]}"; do may[${line[0]} $name]=1; done
done < <("$tests/layering.sh" --table)
declare -A header=()
while read -r group example; do
  targets+=("<$group>")
  header["<$group>"]=$example
done < <("$tests/layering.sh" --groups)
# For FOLDER/**, a folder that has no line of its own.
folder_of() { echo "${1/%\/\*\*//never_named}"; }
for folder in "${folders[@]}"; do
  targets+=("$folder")
  path=$(folder_of "$folder")/part.h
  # Files do not give the whole path of messages and of the client's public headers.
  case $path in
    proto/*/*) path=${path#proto/} ;;
    client/gemmd/*) path=${path#client/} ;;
  esac
  header[$folder]=$path
done
header["tests"]=tests/testing/part.h
header["unknown, quoted"]=part.h
header["unknown, in a folder"]=nowhere/part.h
targets+=(tests "unknown, quoted" "unknown, in a folder")

is_allowed() {
  [[ -n ${may[$1 $2]:-} || ($2 == "<small>" && -n ${may[$1 <std>]:-}) ]]
}

# wall FROM TO [EXCEPT...]: no folder that matches FROM, except those that match an EXCEPT, may
# include one that matches TO. All are patterns, and each must match something.
wall() {
  local from to except pairs=0
  for from in "${folders[@]}"; do
    # shellcheck disable=SC2053
    [[ $from == $1 ]] || continue
    for except in "${@:3}"; do
      # shellcheck disable=SC2053
      [[ $from == $except ]] && continue 2
    done
    for to in "${targets[@]}"; do
      # shellcheck disable=SC2053
      [[ $to == $2 && $to != "$from" ]] || continue
      ((++pairs))
      ! is_allowed "$from" "$to" || fail "the table lets $from include $to"
    done
  done
  ((pairs > 0)) || fail "no folder and header fit the wall $*"
}
wall 'proto/*' '*' proto/reflection/v1alpha
wall proto/reflection/v1alpha '[!p]*'
wall 'kernels*' 'server*'
wall 'kernels*' 'client*'
wall 'kernels*' 'proto*'
for group in grpc protobuf spdlog prometheus; do wall 'kernels*' "<$group>"; done
wall 'kernels/mma' '[!<]*'
wall 'kernels/mma' '<[!s]*'
wall 'kernels/mma' '<std>'
wall 'kernels/mma' '<spdlog>'
for ground in kernels/matrix kernels/option; do
  wall $ground kernels
  wall $ground 'kernels/[!m]*'
done
wall 'kernels/matrix' '<[!as]*'
wall 'kernels/matrix' '<spdlog>'
wall 'kernels/option' kernels/mma
wall '*' '<cuda>' 'kernels/cuda/device/*' kernels/bench/gpu server/worker/cuda
wall '*' 'kernels/cuda/device/*' 'kernels/cuda/device/*' kernels/bench/gpu server/worker/cuda
wall 'server*' 'client*'
wall 'server*' 'proto*' server/wire server/kserve
wall 'server*' 'proto/kserve/*' server/kserve
wall 'server*' 'proto/reflection/*' server/wire
wall 'server*' '<protobuf>' server/wire server/kserve
wall 'server*' '<grpc>' server/wire server/kserve server
wall '*' '<crypto>' server/metrics server/store server/wire server/trust client
wall 'client*' kernels
wall 'client*' 'kernels/[!mo]*'
wall 'client*' kernels/mma
wall 'client*' 'server*'
# Each of the daemon's folders may include only those before it, and none may include the worker.
wall '*' 'server/worker*' 'server/worker/*'
order=(server/{system,trust,crossing,device,store,product,metrics,wire,kserve} server)
for ((low = 0; low < ${#order[@]}; ++low)); do
  for higher in "${order[@]:low + 1}"; do wall "${order[low]}" "$higher"; done
done
for other in device store product metrics wire; do wall 'server/worker*' "server/$other"; done
wall 'server/worker*' server
# The same for the client's; its two programs do not include each other.
for folder in 'client/*' client; do wall client/gemmd "$folder"; done
for folder in matrix terminal gemmctl 'load*'; do wall client "client/$folder"; done
for program in gemmctl 'load*'; do
  for shared in matrix terminal; do wall "client/$shared" "client/$program"; done
done
wall client/gemmctl 'client/load*'
wall 'client/load*' client/gemmctl

# Each kind of header in each folder, in files with changing names, which must not matter.
names=(catalog.h main.cc gemm_service.h launch.cu product_runner.cc product.cuh version.h x.cc)
count=0
for from in "${folders[@]}"; do
  mkdir -p "$planted/$(folder_of "$from")"
  for to in "${targets[@]}"; do
    file=$(folder_of "$from")/$count.${names[count % ${#names[@]}]}
    printf '// Before.\n  #  include "%s"\n' "${header[$to]}" >"$planted/$file"
    [[ $to == "$from" ]] || is_allowed "$from" "$to" || echo "$file" >>"$planted/expected"
    ((++count))
  done
done
# A folder that is not in the table.
mkdir -p "$planted/server/unheard_of"
echo '#include <vector>' >"$planted/server/unheard_of/x.h"
echo server/unheard_of/x.h >>"$planted/expected"

if "$tests/layering.sh" "$planted" >"$planted/told"; then fail "violations do not fail the check"; fi
sed -E 's/^.*: ([^ ]*):[0-9]+:.*/\1/' "$planted/told" | sort >"$planted/found"
sort -o "$planted/expected" "$planted/expected"
diff "$planted/expected" "$planted/found" || fail "expected (<) and found (>) violations differ"
(($(wc -l <"$planted/expected") > 100)) || fail "hardly anything was planted"
echo "layering holds, and each of $(wc -l <"$planted/expected") planted violations is found"
