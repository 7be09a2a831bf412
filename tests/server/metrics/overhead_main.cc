// SPDX-License-Identifier: Apache-2.0
//
// The cost of counting and scraping for small products: one stream of 64 x 64 x 64 over loopback,
// alternately with and without a scraper that never pauses, and the time that counting one product
// takes by itself.
// usage: gemmd-metrics-overhead [SECONDS]
#include <arpa/inet.h>
#include <grpc/grpc.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "kernels/kernel.h"
#include "server/product/counts.h"
#include "server/system/clock.h"
#include "tests/server/wire/running_server.h"

namespace gemmd {
namespace {

void Scrape(const std::string& address) {
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  const int port = std::atoi(address.c_str() + address.rfind(':') + 1);  // NOLINT: our own.
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const std::string request = "GET /metrics HTTP/1.1\r\n\r\n";
  char part[4096];
  if (connect(connection, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0 &&
      write(connection, request.data(), request.size()) > 0) {
    while (read(connection, part, sizeof(part)) > 0) continue;
  }
  close(connection);
}

// Appends the daemon's time for each product (total, less queue and compute), for `ns`.
void Measure(v1::Gemm::Stub& stub, int64_t ns, std::vector<int64_t>& overheads) {
  const SteadyClock clock;
  const v1::MultiplyRequest request = IntegerRequest(64, 64, 64);
  const int64_t end_ns = clock.NowNs() + ns;
  while (clock.NowNs() < end_ns) {
    grpc::ClientContext context;
    v1::MultiplyResponse response;
    if (!stub.Multiply(&context, request, &response).ok()) std::abort();
    const v1::Timing& timing = response.timing();
    overheads.push_back(timing.total_ns() - timing.queue_ns() - timing.compute_ns());
  }
}

int64_t MedianOf(std::vector<int64_t>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double NsToCount() {
  constexpr int kTimes = 1'000'000;
  const SteadyClock clock;
  Stats stats(1);
  const Completion completion = {.kernel = Catalog().data(), .timing = {.total_ns = 50'000}};
  const int64_t start_ns = clock.NowNs();
  for (int i = 0; i < kTimes; ++i) stats.AddCompletion(completion);
  return static_cast<double>(clock.NowNs() - start_ns) / kTimes;
}

int Main(double seconds) {
  spdlog::set_level(spdlog::level::off);
  ServerOptions options = TestServerOptions();
  options.metrics_listen = "127.0.0.1:0";
  RunningServer server(TestDevice::kCpu, options);
  std::vector<int64_t> quiet;
  std::vector<int64_t> scraped;
  int64_t scrapes = 0;
  constexpr int kTurns = 20;
  const auto turn_ns = static_cast<int64_t>(seconds / (2 * kTurns) * 1e9);
  for (int turn = 0; turn < kTurns; ++turn) {
    Measure(server.gemm(), turn_ns, quiet);
    std::atomic<bool> is_over = false;
    // Several thousand times as often as Prometheus does by default.
    std::thread scraper([&] {
      for (; !is_over; ++scrapes) {
        Scrape(server.server().metrics_address());
        absl::SleepFor(absl::Milliseconds(10));
      }
    });
    Measure(server.gemm(), turn_ns, scraped);
    is_over = true;
    scraper.join();
  }
  const auto quiet_us = static_cast<double>(MedianOf(quiet)) / 1e3;
  const auto scraped_us = static_cast<double>(MedianOf(scraped)) / 1e3;
  const double count_ns = NsToCount();
  std::printf("overhead of a 64x64x64 product, median: %.1f us; with %lld scrapes: %.1f us, %.3f\n",
              quiet_us, static_cast<long long>(scrapes), scraped_us, scraped_us / quiet_us);
  std::printf("counting one product: %.0f ns, %.4f of that overhead\n", count_ns,
              count_ns / 1e3 / quiet_us);
  return 0;
}

}  // namespace
}  // namespace gemmd

int main(int argc, char** argv) { return gemmd::Main(argc > 1 ? std::atof(argv[1]) : 10); }
