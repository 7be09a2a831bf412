// SPDX-License-Identifier: Apache-2.0
//
// Owned CUDA graphs: recorded work of a stream, to be run again as a whole.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device/runtime.h"

namespace gemmd::bench {

class CudaGraph {
 public:
  static absl::StatusOr<CudaGraph> Create();
  // Captures the work that `put` enqueues on the stream, without running it. Errors: those of
  // `put`; Unimplemented if `put` does something that cannot be captured.
  static absl::StatusOr<CudaGraph> Capture(const Stream& stream,
                                           const std::function<absl::Status()>& put);

  CudaGraph(CudaGraph&& other) noexcept { std::swap(graph_, other.graph_); }
  CudaGraph& operator=(CudaGraph&& other) noexcept {
    std::swap(graph_, other.graph_);
    return *this;
  }
  ~CudaGraph();

  cudaGraph_t get() const { return graph_; }
  absl::StatusOr<std::vector<cudaGraphNode_t>> Nodes() const;

  // Adds a copy of another graph's kernel, arguments included, to run after `after` if that is not
  // null, and sets `after` to the copy.
  absl::Status AppendKernel(cudaGraphNode_t kernel, cudaGraphNode_t& after);

 private:
  CudaGraph() = default;

  cudaGraph_t graph_ = nullptr;
};

// The last kernel of the graph; null if the graph ends otherwise.
absl::StatusOr<cudaGraphNode_t> LastKernelOf(const CudaGraph& graph);

// An executable graph.
class CudaGraphInstance {
 public:
  static absl::StatusOr<CudaGraphInstance> Create(const CudaGraph& graph);

  CudaGraphInstance(CudaGraphInstance&& other) noexcept { std::swap(instance_, other.instance_); }
  CudaGraphInstance& operator=(CudaGraphInstance&&) = delete;
  ~CudaGraphInstance();

  absl::Status Launch(const Stream& stream) const;

 private:
  CudaGraphInstance() = default;

  cudaGraphExec_t instance_ = nullptr;
};

}  // namespace gemmd::bench
