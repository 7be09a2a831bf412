#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Checks which folder includes which: proto <- client; proto <- server -> kernels -> kernels/mma.
# usage: layering.sh [ROOT]. Prints every offending line; exits 1 where there is one.
set -euo pipefail
cd "${1:-$(dirname "${BASH_SOURCE[0]}")/..}"

violations=0
# forbid WHY PATTERN FILE...: no #include in the files may match the pattern.
forbid() {
  local why=$1 pattern=$2
  shift 2
  (($# > 0)) || return 0
  local found
  found=$(grep -nHE "^ *# *include *[<\"]($pattern)" "$@" || true)
  [[ -z $found ]] && return 0
  printf '%s:\n%s\n' "$why" "$found"
  violations=$((violations + 1))
}

sources() { find "$@" -name '*.h' -o -name '*.cc' -o -name '*.cuh' -o -name '*.cu' | sort; }
in_folder() { [[ -d $1 ]] && sources "$1" || true; }
mapfile -t kernels < <(in_folder kernels)
mapfile -t mma < <(in_folder kernels/mma)
mapfile -t server < <(in_folder server)
mapfile -t client < <(in_folder client)
mapfile -t without_wire < <(printf '%s\n' "${server[@]}" | grep . |
  grep -vE '^server/([a-z_]*service|convert|convert_instruction|convert_operand|convert_statistics|product_runner|multiply_stream)\.(h|cc)$' || true)
mapfile -t without_cuda < <(printf '%s\n' "${kernels[@]}" "${server[@]}" "${client[@]}" |
  grep -vE '^(kernels/cuda/|kernels/bench/|server/worker/cuda_runtime\.cc)' | grep . || true)
mapfile -t front < <(printf '%s\n' "${server[@]}" "${client[@]}" |
  grep -vE '^server/worker/(cuda_runtime\.cc|gpu_rates\.cc|worker_main\.cc)' | grep . || true)
mapfile -t worker < <(in_folder server/worker)
mapfile -t metrics < <(in_folder server/metrics)
mapfile -t without_grpc < <(printf '%s\n' "${kernels[@]}" \
  "${worker[@]}" \
  server/{admission,canary,clock,devices,host_device,device,fake_device,scheduler}.{h,cc} \
  server/worker_device{,_life}.{h,cc} server/served_device.{h,cc} "${metrics[@]}" |
  while read -r file; do [[ -f $file ]] && echo "$file"; done)

forbid "kernels/ knows nothing of the service" '(server|client|gemmd|spdlog)/' "${kernels[@]}"
forbid "kernels/mma stands alone" '(kernels/[^m]|kernels/m[^m]|absl/|cuda)' "${mma[@]}"
forbid "devices, scheduling and metrics know nothing of gRPC" '(grpc|grpcpp|google)/' "${without_grpc[@]}"
forbid "the server knows nothing of the client" '(client/|gemmd/[^v])' "${server[@]}"
forbid "the wire's messages are for services and convert" 'gemmd/v1/' "${without_wire[@]}"
forbid "the client knows nothing of server and kernels" '(server|kernels)/' "${client[@]}"
forbid "CUDA stays in its folders" '(cuda|cublas|cusparse|nvml)[a-zA-Z_]*\.h' "${without_cuda[@]}"
forbid "rows and code of GPU kernels are for the worker" 'kernels/cuda/' "${front[@]}"
forbid "a worker knows what it shares with the front, and no more" 'server/[^w]|server/w[^o]' \
  "${worker[@]}"

((violations == 0))
