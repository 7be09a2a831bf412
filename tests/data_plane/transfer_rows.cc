// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <span>

#include "gemmd/v1/resident.pb.h"
#include "tests/data_plane/bare_grpc.h"
#include "tests/data_plane/rows.h"

namespace gemmd {
namespace {

constexpr double kFourConnectionsGbPerS = 6;

// The daemon's default of staging memory: --gpu-staging-bytes.
constexpr double kStagingMib = 768;

void PrintTransfer(const std::string& what, double gb_per_s, double bare_gb_per_s,
                   int connections) {
  Row row = {.what = what,
             .unit = "GB/s",
             .seen = gb_per_s,
             .measure = "bare streams",
             .by = bare_gb_per_s,
             .wanted = 0.8};
  Print(row);
  if (connections < 4) return;
  row.measure = "6 GB/s";
  row.by = kFourConnectionsGbPerS;
  row.wanted = 1;
  Print(row);
}

// Waits until the tensor is in memory of the device.
void AwaitDevice(Client& client, const TensorRef& tensor, const std::string& device) {
  const double limit = NowSeconds() + 120;
  while (NowSeconds() < limit) {
    const v1::TensorInfo info = Value(client.Describe(tensor));
    for (const v1::TensorPlace& place : info.places()) {
      if (place.device() == device) return;
    }
  }
  Fail("the tensor is not on " + device);
}

// A tensor that is uploaded and downloaded.
class Transfer {
 public:
  Transfer(const Targets& targets, const std::string& address, int connections)
      : targets_(targets),
        source_(static_cast<size_t>(targets.transfer_mib) << 20, 1),
        target_(source_.size(), 2),
        client_(Connect(address)) {
    put_.connections = connections;
    if (targets.is_gpu()) put_.device = targets.device;
    get_.connections = connections;
  }

  void Run() {
    const int pid = targets_.pid;
    const int64_t before = pid == 0 ? 0 : ResidentBytes(pid);
    if (pid != 0) ForgetPeak(pid);
    const auto count = static_cast<int64_t>(source_.size());
    absl::StatusOr<ResidentTensor> tensor = absl::UnknownError("");
    put_seconds_ = SecondsOf([&] { tensor = client_.Put(View(source_, 1, count), put_); });
    if (!tensor.ok()) Fail(tensor.status().ToString());
    placed_seconds_ = put_seconds_;
    if (targets_.is_gpu()) {
      placed_seconds_ += SecondsOf([&] { AwaitDevice(client_, tensor->ref(), targets_.device); });
    }
    get_seconds_ = SecondsOf([&] {
      Value(client_.Get(tensor->ref(), std::as_writable_bytes(std::span(target_)), get_));
    });
    if (source_ != target_) Fail("get: other bytes came back");
    if (pid != 0) max_beside_ = std::max(max_beside_, PeakResidentBytes(pid) - before - count);
  }

  double put_seconds() const { return put_seconds_; }
  double placed_seconds() const { return placed_seconds_; }
  double get_seconds() const { return get_seconds_; }
  // The maximum memory that the daemon used for a transfer beside the tensor's own bytes.
  int64_t max_beside() const { return max_beside_; }

 private:
  const Targets& targets_;
  const std::vector<uint8_t> source_;
  std::vector<uint8_t> target_;
  Client client_;
  PutOptions put_;
  GetOptions get_;
  double put_seconds_ = 0;
  double placed_seconds_ = 0;
  double get_seconds_ = 0;
  int64_t max_beside_ = 0;
};

void MeasureOver(const Targets& targets, const std::string& address, int connections) {
  BareGrpc bare(address);
  Transfer transfer(targets, address, connections);
  const auto bytes = static_cast<size_t>(targets.transfer_mib) << 20;
  const std::vector<double> seconds =
      InTurns({[&] {
                 transfer.Run();
                 return transfer.put_seconds();
               },
               [&] { return transfer.get_seconds(); },
               [&] { return SecondsOf([&] { bare.StreamUp(bytes, connections); }); },
               [&] { return SecondsOf([&] { bare.StreamDown(bytes, connections); }); },
               [&] { return transfer.placed_seconds(); }},
              std::max(1, targets.turns / 2));
  const double gb = 1e-9 * static_cast<double>(bytes);
  const std::string where = std::to_string(targets.transfer_mib) + " MiB, " +
                            std::to_string(connections) + " connections, " +
                            (address.starts_with("unix:") ? "unix" : "TCP");
  PrintTransfer("Put, " + where, gb / seconds[0], gb / seconds[2], connections);
  PrintTransfer("Get, " + where, gb / seconds[1], gb / seconds[3], connections);
  if (targets.is_gpu()) {
    Print({.what = "Put, " + where + ", until it is on " + targets.device,
           .unit = "GB/s",
           .seen = gb / seconds[4],
           .measure = "bare streams",
           .by = gb / seconds[2]});
  }
  if (targets.pid == 0) return;
  Print({.what = "Put and Get, " + where + ", memory of the daemon beside the tensor",
         .unit = "MiB",
         .seen = static_cast<double>(transfer.max_beside()) / (1 << 20),
         .measure = "staging memory of a GPU",
         .by = kStagingMib,
         .wanted = 1,
         .is_most = true});
}

}  // namespace

void MeasureTransfers(const Targets& targets) {
  for (const int connections : {1, 2}) {
    MeasureOver(targets, targets.unix_socket, connections);
    MeasureOver(targets, targets.tcp, connections);
  }
}

void MeasureStripedTransfers(const Targets& targets) {
  MeasureOver(targets, targets.unix_socket, BareGrpc::kConnections);
  MeasureOver(targets, targets.tcp, BareGrpc::kConnections);
}

}  // namespace gemmd
