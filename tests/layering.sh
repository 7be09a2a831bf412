#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Checks which folder includes which, against the table below. No file has a name here.
# usage: layering.sh [ROOT]      prints every include that crosses a wall; exits 1 where there is one
#        layering.sh --table     prints the table: FOLDER, then all that it may include
#        layering.sh --groups    prints each group of headers from outside, and one header of it
set -euo pipefail

# FOLDER: what its files may include besides their own folder: other folders of the table, and
# groups of headers from outside in angle brackets. FOLDER/** stands for its subfolders too, except
# those that have a line of their own. A folder without a line may hold no sources, so that a new
# one is thought about first.
table='
proto:                      <std> <absl> <grpc> <protobuf>
proto/gemmd/v1:
proto/kserve/v2:
proto/reflection/v1:
proto/reflection/v1alpha:   proto/reflection/v1
proto/health/v1:

kernels/mma:                <small>
kernels/matrix:             kernels/mma
                            <std> <absl>
kernels/option:             kernels/matrix
                            <std> <absl> <cli>
kernels:                    kernels/matrix kernels/mma kernels/cpu kernels/sim kernels/cuda
                            <std> <posix> <absl>
kernels/cpu:                kernels kernels/matrix kernels/mma
                            <std> <posix> <absl> <blas> <openmp>
kernels/sim:                kernels kernels/matrix kernels/mma kernels/sim/vector
                            <std> <absl> <openmp>
kernels/sim/vector:         kernels/mma kernels/sim
                            <small> <vector>
kernels/verify:             kernels kernels/matrix kernels/mma kernels/sim
                            <std> <absl>
kernels/cuda:               kernels kernels/matrix kernels/mma kernels/cuda/groups kernels/cuda/operands
                            <std> <absl>
kernels/cuda/groups:        kernels kernels/matrix kernels/mma kernels/cuda
                            <std> <absl>
kernels/cuda/operands:      kernels kernels/matrix kernels/mma kernels/cuda
                            <std> <absl>
kernels/cuda/device/ptx:    kernels/mma
                            <small>
kernels/cuda/device/**:     kernels kernels/matrix kernels/mma kernels/cuda kernels/cuda/groups
                            kernels/cuda/operands kernels/cuda/device/ptx
                            <std> <absl> <cuda>
kernels/bench:              kernels kernels/option kernels/matrix kernels/mma kernels/cpu kernels/sim kernels/bench/gpu
                            <std> <posix> <absl> <blas> <cli> <json>
kernels/bench/record:       kernels kernels/matrix kernels/mma kernels/sim
                            <std> <posix> <absl> <cli> <json>
kernels/bench/gpu:          kernels kernels/matrix kernels/mma kernels/bench kernels/cuda/device/**
                            <std> <posix> <absl> <cuda> <json>

server/system:              <std> <posix> <absl> <spdlog>
server/trust:               server/system kernels/matrix
                            <std> <posix> <absl> <crypto> <json> <yaml>
server/crossing:            server/system kernels kernels/matrix kernels/mma kernels/verify
                            <std> <posix> <absl>
server/worker:              server/crossing server/system kernels kernels/cpu kernels/matrix kernels/mma
                            kernels/verify
                            <std> <posix> <absl> <linux>
server/worker/cuda:         server/worker server/crossing server/system
                            kernels kernels/matrix kernels/mma kernels/cuda kernels/cuda/device/**
                            <std> <posix> <absl> <cuda>
server/device:              server/crossing server/system kernels kernels/matrix kernels/mma kernels/cpu
                            <std> <posix> <absl>
server/store:               server/device server/crossing server/system kernels kernels/matrix kernels/mma
                            <std> <posix> <absl> <crypto>
server/product:          server/trust server/store server/device server/crossing server/system
                            kernels kernels/matrix kernels/mma kernels/verify kernels/cpu
                            <std> <posix> <absl> <json>
server/metrics:             server/product server/trust server/store server/device
                            server/crossing server/system kernels kernels/matrix kernels/mma
                            <std> <posix> <absl> <prometheus> <crypto>
server/wire:                server/metrics server/product server/trust server/store
                            server/device server/crossing server/system kernels kernels/matrix kernels/mma kernels/cpu kernels/option proto
                            proto/gemmd/v1 proto/health/v1 proto/reflection/v1 proto/reflection/v1alpha
                            <std> <posix> <absl> <grpc> <protobuf> <crypto>
server/kserve:              server/wire server/metrics server/product server/trust server/store
                            server/device server/crossing server/system kernels kernels/matrix kernels/mma
                            proto proto/gemmd/v1 proto/kserve/v2
                            <std> <absl> <grpc> <protobuf>
server:                     kernels/option server/kserve server/wire server/metrics server/product server/trust
                            server/store server/device server/crossing server/system kernels kernels/matrix kernels/mma kernels/cpu
                            <std> <posix> <absl> <grpc> <spdlog> <cli> <linux>

client/gemmd:               <std> <absl> <grpc>
client/gemmd/health:
client:                     client/gemmd client/gemmd/health proto proto/gemmd/v1 kernels/matrix kernels/option
                            <std> <posix> <absl> <grpc> <protobuf> <crypto>
client/matrix:              client client/gemmd proto/gemmd/v1 kernels/matrix
                            <std> <posix> <absl> <json>
client/terminal:            client client/gemmd proto/gemmd/v1 kernels/matrix kernels/option
                            <std> <posix> <absl> <cli> <json>
client/gemmctl:             client client/gemmd client/matrix client/terminal proto/gemmd/v1 kernels/matrix kernels/option
                            <std> <posix> <absl> <protobuf> <cli> <json>
client/load:                client client/gemmd client/matrix client/terminal proto/gemmd/v1
                            client/load/report kernels/matrix kernels/option
                            <std> <posix> <absl> <cli> <json> <prometheus>
client/load/report:         client client/gemmd client/matrix client/terminal proto/gemmd/v1
                            client/load
                            <std> <posix> <absl> <json>
'

# GROUP, a header in it, and the pattern of all its headers. <small> is the part of <std> that also
# compiles in device code and includes little.
groups='
small       cstdint              ^(array|bit|cstddef|cstdint|limits|optional|string_view|type_traits|utility)$
std         vector               ^[a-z_]+$
absl        absl/time/time.h     ^absl/
grpc        grpcpp/grpcpp.h      ^(grpc|grpcpp)/
protobuf    google/protobuf/any.pb.h  ^google/
spdlog      spdlog/spdlog.h      ^spdlog/
prometheus  prometheus/metric.h  ^prometheus/
cli         CLI/CLI.hpp          ^CLI/
json        nlohmann/json.hpp    ^nlohmann/
openmp      omp.h                ^omp[.]h$
blas        cblas.h              ^(cblas|dnnl[a-z_]*)[.]h(pp)?$
vector      immintrin.h          ^immintrin[.]h$
cuda        cuda_runtime_api.h   ^((cuda|cublas|cusparse|nv)[A-Za-z_]*|library_types)([.]h)?(/|$)
crypto      openssl/sha.h        ^openssl/
yaml        yaml.h               ^yaml[.]h$
linux       linux/seccomp.h      ^linux/
posix       unistd.h             ^((arpa|net|netinet|sys)/|(dlfcn|fcntl|fnmatch|grp|malloc|netdb|poll|pthread|sched|signal|spawn|termios|time|unistd)[.]h$)
'

# One line for each line of the table: "FOLDER NAME NAME ...".
flat_table() {
  printf '%s\n' "$table" | awk '
    /^[^ ]/ { if (line != "") print line; line = "" }
    NF { sub(":", ""); $1 = $1; line = line (line == "" ? "" : " ") $0 }
    END { print line }'
}

case ${1:-} in
  --table)
    flat_table
    exit
    ;;
  --groups)
    printf '%s' "$groups" | awk 'NF { print $1, $2 }'
    exit
    ;;
esac
cd "${1:-$(dirname "${BASH_SOURCE[0]}")/..}"

folders=()
for folder in proto kernels server client; do [[ -d $folder ]] && folders+=("$folder"); done
sources() {
  find "${folders[@]}" -type f \
    \( -name '*.h' -o -name '*.cc' -o -name '*.cuh' -o -name '*.cu' -o -name '*.proto' \) | sort
}
# A part of the list may have no includes, which is not a failure.
includes() { sources | xargs grep -HnE '^[ \t]*(#[ \t]*include[ \t]*[<"]|import .*")' || true; }
includes |
  awk -v table="$(flat_table)" -v groups="$groups" '
    BEGIN {
      lines = split(table, line, "\n")
      for (i = 1; i <= lines; i++) {
        words = split(line[i], word, " ")
        if (words == 0) continue
        known[word[1]] = 1
        may[word[1], word[1]] = 1
        for (j = 2; j <= words; j++) may[word[1], word[j]] = 1
      }
      lines = split(groups, line, "\n")
      for (i = 1; i <= lines; i++) {
        if (split(line[i], word, " ") != 3) continue
        group_name[++group_count] = word[1]
        group_pattern[group_count] = word[3]
      }
    }
    # The line of the table that applies to a folder; empty if there is none.
    function line_of(folder) {
      if (folder in known) return folder
      while (folder != "") {
        if ((folder "/**") in known) return folder "/**"
        if (!sub("/[^/]*$", "", folder)) return ""
      }
      return ""
    }
    function folder_of(path) { return sub("/[^/]*$", "", path) ? path : "." }
    function allows(from, header, i) {
      for (i = 1; i <= group_count; i++) {
        if (header ~ group_pattern[i] && (from, "<" group_name[i] ">") in may) return 1
      }
      return 0
    }
    {
      path = $0; sub(":.*", "", path)
      header = $0; sub("^[^<\"]*[<\"]", "", header); sub("[>\"].*", "", header)
      from = line_of(folder_of(path))
      # Includes of messages and of public headers of the client do not give the whole path.
      target = header
      if (header ~ "^(gemmd/v1|kserve/v2|health/v1|reflection/v1|reflection/v1alpha)/") target = "proto/" header
      else if (header ~ "^gemmd/") target = "client/" header
      if (from == "") why = "a folder without a line in the table"
      else if (target ~ "^(proto|kernels|server|client|tests|deploy)/") {
        to = line_of(folder_of(target))
        why = (to != "" && (from, to) in may) ? "" : from " may not include " folder_of(target)
      } else {
        why = allows(from, header) ? "" : from " may not include such headers"
      }
      if (why != "") { print why ": " $0; violations++ }
    }
    END {
      if (NR == 0) print "no includes were found"
      exit NR == 0 || violations > 0
    }'
