// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <span>

#include "tests/data_plane/bare_grpc.h"
#include "tests/data_plane/rows.h"

namespace gemmd {
namespace {

constexpr double kFourConnectionsGbPerS = 6;

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

void MeasureOver(const Targets& targets, const std::string& address, int connections) {
  const auto bytes = static_cast<size_t>(targets.transfer_mib) << 20;
  std::vector<uint8_t> source(bytes, 1);
  std::vector<uint8_t> target(bytes, 2);
  BareGrpc bare(address);
  Client client = Connect(address);
  const auto count = static_cast<int64_t>(bytes);
  const PutOptions put = {.connections = connections};
  const GetOptions get = {.connections = connections};
  double put_seconds = 0;
  double get_seconds = 0;
  const auto transfer = [&] {
    absl::StatusOr<ResidentTensor> tensor = absl::UnknownError("");
    put_seconds = SecondsOf([&] { tensor = client.Put(View(source, 1, count), put); });
    if (!tensor.ok()) Fail(tensor.status().ToString());
    get_seconds = SecondsOf(
        [&] { Value(client.Get(tensor->ref(), std::as_writable_bytes(std::span(target)), get)); });
    if (source != target) Fail("get: other bytes came back");
    return put_seconds;
  };
  const int turns = std::max(1, targets.turns / 2);
  const std::vector<double> seconds =
      InTurns({transfer, [&] { return get_seconds; },
               [&] { return SecondsOf([&] { bare.StreamUp(bytes, connections); }); },
               [&] { return SecondsOf([&] { bare.StreamDown(bytes, connections); }); }},
              turns);
  const double gb = 1e-9 * static_cast<double>(bytes);
  const std::string where = std::to_string(targets.transfer_mib) + " MiB, " +
                            std::to_string(connections) + " connections, " +
                            (address.starts_with("unix:") ? "unix" : "TCP");
  PrintTransfer("Put, " + where, gb / seconds[0], gb / seconds[2], connections);
  PrintTransfer("Get, " + where, gb / seconds[1], gb / seconds[3], connections);
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
