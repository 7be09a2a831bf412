// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/gpu/cuda_graph.h"

#include <cstddef>

#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"

namespace gemmd::bench {
namespace {

// Whether a node directly follows this one. A kernel may begin before the previous one ends; CUDA
// lists such a dependency only if edge data is requested too.
template <typename Node>
cudaError_t HasDependent(Node node, bool& has_dependent) {
  Node dependent = nullptr;
  cudaGraphEdgeData edge = {};
  size_t count = 1;
  cudaError_t error;
  if constexpr (requires { cudaGraphNodeGetDependentNodes(node, &dependent, &edge, &count); }) {
    error = cudaGraphNodeGetDependentNodes(node, &dependent, &edge, &count);
  } else {
    error = cudaGraphNodeGetDependentNodes_v2(node, &dependent, &edge, &count);  // CUDA 12.
  }
  has_dependent = dependent != nullptr;
  return error;
}

}  // namespace

absl::StatusOr<CudaGraph> CudaGraph::Create() {
  CudaGraph graph;
  RETURN_IF_ERROR(CudaStatus(cudaGraphCreate(&graph.graph_, 0), "graph"));
  return graph;
}

absl::StatusOr<CudaGraph> CudaGraph::Capture(const Stream& stream,
                                             const std::function<absl::Status()>& put) {
  RETURN_IF_ERROR(CudaStatus(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeRelaxed),
                             "begin of capture"));
  const absl::Status status = put();
  CudaGraph graph;
  const cudaError_t error = cudaStreamEndCapture(stream.get(), &graph.graph_);
  if (error != cudaSuccess) {
    cudaGetLastError();  // A failed capture does not damage the context.
    if (IsSticky(error)) return CudaStatus(error, "capture");
    return absl::UnimplementedError(Concat("capture: ", cudaGetErrorString(error)));
  }
  RETURN_IF_ERROR(status);
  return graph;
}

CudaGraph::~CudaGraph() {
  if (graph_ != nullptr) cudaGraphDestroy(graph_);
}

absl::StatusOr<std::vector<cudaGraphNode_t>> CudaGraph::Nodes() const {
  size_t count = 0;
  RETURN_IF_ERROR(CudaStatus(cudaGraphGetNodes(graph_, nullptr, &count), "nodes"));
  std::vector<cudaGraphNode_t> nodes(count);
  if (count == 0) return nodes;
  RETURN_IF_ERROR(CudaStatus(cudaGraphGetNodes(graph_, nodes.data(), &count), "nodes"));
  return nodes;
}

absl::Status CudaGraph::AppendKernel(cudaGraphNode_t kernel, cudaGraphNode_t& after) {
  cudaKernelNodeParams parameters = {};
  RETURN_IF_ERROR(CudaStatus(cudaGraphKernelNodeGetParams(kernel, &parameters), "kernel node"));
  cudaGraphNode_t node = nullptr;
  RETURN_IF_ERROR(CudaStatus(
      cudaGraphAddKernelNode(&node, graph_, &after, after == nullptr ? 0 : 1, &parameters),
      "kernel node"));
  RETURN_IF_ERROR(CudaStatus(cudaGraphKernelNodeCopyAttributes(node, kernel), "kernel node"));
  after = node;
  return absl::OkStatus();
}

absl::StatusOr<cudaGraphNode_t> LastKernelOf(const CudaGraph& graph) {
  ASSIGN_OR_RETURN(const std::vector<cudaGraphNode_t> nodes, graph.Nodes());
  cudaGraphNode_t last = nullptr;
  for (cudaGraphNode_t node : nodes) {
    bool has_dependent = false;
    RETURN_IF_ERROR(CudaStatus(HasDependent(node, has_dependent), "dependent nodes"));
    if (has_dependent) continue;
    cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
    RETURN_IF_ERROR(CudaStatus(cudaGraphNodeGetType(node, &type), "type of a node"));
    if (type != cudaGraphNodeTypeKernel || last != nullptr) return nullptr;
    last = node;
  }
  return last;
}

absl::StatusOr<CudaGraphInstance> CudaGraphInstance::Create(const CudaGraph& graph) {
  CudaGraphInstance instance;
  RETURN_IF_ERROR(
      CudaStatus(cudaGraphInstantiate(&instance.instance_, graph.get(), 0), "instance of a graph"));
  return instance;
}

CudaGraphInstance::~CudaGraphInstance() {
  if (instance_ != nullptr) cudaGraphExecDestroy(instance_);
}

absl::Status CudaGraphInstance::Launch(const Stream& stream) const {
  return CudaStatus(cudaGraphLaunch(instance_, stream.get()), "graph");
}

}  // namespace gemmd::bench
