// SPDX-License-Identifier: Apache-2.0
//
// The service gemmd.v1.Registry: kernels, devices, the choice for a product, version and limits,
// counts, instructions.
#pragma once

#include <vector>

#include "gemmd/v1/registry.grpc.pb.h"
#include "server/metrics/observer.h"
#include "server/scheduling/product_runner.h"
#include "server/system/clock.h"

namespace gemmd {

class RegistryService final : public v1::Registry::CallbackService {
 public:
  // Borrows everything. `limits` is what GetServerInfo tells.
  RegistryService(const std::vector<ServedDevice>& devices, const ProductRunner& runner,
                  const Observer& observer, const Clock& clock, v1::Limits limits);

  grpc::ServerUnaryReactor* ListKernels(grpc::CallbackServerContext* context,
                                        const v1::ListKernelsRequest* request,
                                        v1::ListKernelsResponse* response) override;
  grpc::ServerUnaryReactor* ListDevices(grpc::CallbackServerContext* context,
                                        const v1::ListDevicesRequest* request,
                                        v1::ListDevicesResponse* response) override;
  grpc::ServerUnaryReactor* Explain(grpc::CallbackServerContext* context,
                                    const v1::ExplainRequest* request,
                                    v1::ExplainResponse* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetServerInfoRequest* request,
                                          v1::GetServerInfoResponse* response) override;
  grpc::ServerUnaryReactor* GetStatistics(grpc::CallbackServerContext* context,
                                          const v1::GetStatisticsRequest* request,
                                          v1::GetStatisticsResponse* response) override;
  grpc::ServerUnaryReactor* ListInstructions(grpc::CallbackServerContext* context,
                                             const v1::ListInstructionsRequest* request,
                                             v1::ListInstructionsResponse* response) override;
  grpc::ServerUnaryReactor* DescribeFragment(grpc::CallbackServerContext* context,
                                             const v1::DescribeFragmentRequest* request,
                                             v1::DescribeFragmentResponse* response) override;

 private:
  const std::vector<ServedDevice>& devices_;
  const ProductRunner& runner_;
  const Observer& observer_;
  const Clock& clock_;
  const v1::Limits limits_;
  const int64_t started_ns_;
  const int64_t started_unix_ns_;
};

}  // namespace gemmd
