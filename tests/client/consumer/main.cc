// SPDX-License-Identifier: Apache-2.0
//
// A program outside the tree that uses the installed client library.
//
// usage: consumer [ADDRESS]. With the address of a server: multiplies there and checks the result.
// Without: calls a port where nobody listens and expects to be told so. Exits 0 where it went as
// expected.
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "gemmd/client.h"

namespace {

int Multiply(gemmd::Client& client) {
  const int m = 2, n = 2, k = 3;
  std::vector<float> a = {1, 2, 3, 4, 5, 6}, b = {1, 0, 0, 1, 1, 1};
  auto product = client.Multiply(gemmd::View(a, m, k), gemmd::View(b, k, n));
  if (!product.ok()) {
    std::fprintf(stderr, "%s\n", product.status().ToString().c_str());
    return 1;
  }
  std::span<const float> d = product->elements<float>();
  const std::vector<float> want = {4, 5, 10, 11};
  for (float value : d) std::printf("%g ", value);
  std::printf("from %s in %lld ns\n", product->response().kernel().c_str(),
              static_cast<long long>(product->timing().compute_ns()));
  return std::vector<float>(d.begin(), d.end()) == want ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  // Port 1 is reserved; nothing listens there.
  auto client =
      gemmd::Client::Create(argc > 1 ? argv[1] : "127.0.0.1:1", {.timeout = absl::Seconds(20)});
  if (!client.ok()) {
    std::fprintf(stderr, "%s\n", client.status().ToString().c_str());
    return 1;
  }
  if (argc > 1) return Multiply(*client);
  const absl::Status status = client->GetServerInfo().status();
  std::printf("%s\n", status.ToString().c_str());
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ? 0 : 1;
}
