// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/handler_times.h"

namespace gemmd {

std::string_view NameOf(Handler handler) {
  switch (handler) {
    case Handler::kMultiply: return "Multiply";
    case Handler::kMultiplyStream: return "MultiplyStream";
    case Handler::kListKernels: return "ListKernels";
    case Handler::kListDevices: return "ListDevices";
    case Handler::kExplain: return "Explain";
    case Handler::kGetServerInfo: return "GetServerInfo";
    case Handler::kGetStatistics: return "GetStatistics";
    case Handler::kListInstructions: return "ListInstructions";
    case Handler::kDescribeFragment: return "DescribeFragment";
    case Handler::kOpenSession: return "OpenSession";
    case Handler::kPut: return "Put";
    case Handler::kGet: return "Get";
    case Handler::kList: return "List";
    case Handler::kDescribe: return "Describe";
    case Handler::kDelete: return "Delete";
    case Handler::kKeepAlive: return "KeepAlive";
    case Handler::kCompress: return "Compress";
    case Handler::kModelInfer: return "ModelInfer";
    case Handler::kModelStreamInfer: return "ModelStreamInfer";
    case Handler::kKserve: return "GRPCInferenceService";
  }
  return "";
}

HandlerTimes::Snapshot HandlerTimes::Read() const {
  Snapshot snapshot;
  for (size_t i = 0; i < times_.size(); ++i) snapshot[i] = times_[i].Read();
  return snapshot;
}

}  // namespace gemmd
