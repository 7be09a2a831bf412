#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The tree keeps its layering, and the check finds each kind of violation when one is planted.
set -euo pipefail
tests=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
"$tests/layering.sh" "$tests/.."

planted=$(mktemp -d)
trap 'rm -rf "$planted"' EXIT
# expect_violation FILE HEADER: a tree with FILE including HEADER must be refused.
expect_violation() {
  rm -rf "${planted:?}"/*
  mkdir -p "$planted"/{kernels/mma,server/worker,server/metrics,client} "$planted/$(dirname "$1")"
  "$tests/layering.sh" "$planted"
  printf '#include "%s"\n' "$2" >"$planted/$1"
  if "$tests/layering.sh" "$planted" >/dev/null; then
    echo "not found: $1 including $2" >&2
    exit 1
  fi
}
expect_violation kernels/select.cc server/device/device.h
expect_violation kernels/select.cc spdlog/spdlog.h
expect_violation kernels/cpu/rows.cc gemmd/v1/gemm.pb.h
expect_violation kernels/select.h grpcpp/grpcpp.h
expect_violation kernels/mma/fragment.h kernels/problem.h
expect_violation kernels/mma/fragment.h absl/status/status.h
expect_violation server/scheduling/scheduler.cc grpcpp/grpcpp.h
expect_violation server/scheduling/stats.cc grpcpp/grpcpp.h
expect_violation server/server.cc client/matrix/npy.h
expect_violation server/server.cc gemmd/client.h
expect_violation server/options.cc gemmd/v1/gemm.pb.h
expect_violation server/device/host_device.cc cuda_runtime.h
expect_violation server/worker/worker.cc cuda_runtime_api.h
expect_violation server/crossing/protocol.cc grpcpp/grpcpp.h
expect_violation server/worker/worker.cc server/device/device.h
expect_violation server/device/worker_device_life.cc grpcpp/grpcpp.h
expect_violation server/device/worker_device.cc kernels/cuda/device/runtime.h
expect_violation client/client.cc kernels/element.h
expect_violation client/gemmctl/main.cc server/system/log.h
echo "layering holds, and every planted violation is found"
