// SPDX-License-Identifier: Apache-2.0
//
// A program outside the tree that uses the installed client library.
//
// usage: consumer [ADDRESS TLS_ADDRESS CA_FILE]. With the addresses of a server: multiplies there
// in every way that the library has and checks the results. Without: calls a port where nobody
// listens and expects to be told so. Exits 0 where it went as expected.
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "gemmd/client.h"
#include "gemmd/multiply_stream.h"
#include "gemmd/prepare.h"
#include "gemmd/storage_types.h"
#include "kernels/matrix/element.h"
#include "kernels/matrix/sparse24.h"

namespace {

// What is installed beside the library.
int Convert() {
  constexpr gemmd::ElementType kType = gemmd::ElementType::kBf16;
  const auto layout = gemmd::SparseLayoutOf("a", kType, 3, 8);
  const bool is_right = layout.ok() && layout->bytes == 3 * (8 + 1) &&
                        gemmd::Decode(kType, gemmd::Encode(kType, 1.5)) == 1.5;
  return is_right ? 0 : 1;
}

int Multiply(gemmd::Client& client) {
  const int m = 2, n = 2, k = 3;
  std::vector<float> a = {1, 2, 3, 4, 5, 6}, b = {1, 0, 0, 1, 1, 1};
  auto product = client.Multiply(gemmd::View(a, m, k), gemmd::View(b, k, n));
  if (!product.ok()) {
    std::fprintf(stderr, "%s\n", product.status().ToString().c_str());
    return 1;
  }
  std::span<const float> d = *product->elements<float>();
  const std::vector<float> want = {4, 5, 10, 11};
  for (float value : d) std::printf("%g ", value);
  std::printf("from %s in %lld ns\n", product->kernel().c_str(),
              static_cast<long long>(product->timing().compute_ns));
  return std::vector<float>(d.begin(), d.end()) == want ? 0 : 1;
}

// The same product with a matrix that stays on the server, and a result that is left there and
// fetched.
int MultiplyTensors(gemmd::Client& client) {
  const std::vector<gemmd::Bf16> a = {gemmd::Bf16(1), gemmd::Bf16(2), gemmd::Bf16(3),
                                      gemmd::Bf16(4), gemmd::Bf16(5), gemmd::Bf16(6)};
  const std::vector<float> b = {1, 0, 0, 1, 1, 1};
  const auto weights = gemmd::Encode(b, 3, 2, gemmd::v1::kBf16);
  if (!weights.ok()) return 1;
  auto tensor = client.Put(weights->view(), {.name = "weights"});
  if (!tensor.ok()) {
    std::fprintf(stderr, "%s\n", tensor.status().ToString().c_str());
    return 1;
  }
  auto chained = client.Chain(gemmd::View(a, 2, 3), *tensor);
  if (!chained.ok()) {
    std::fprintf(stderr, "%s\n", chained.status().ToString().c_str());
    return 1;
  }
  std::vector<float> d(4);
  const auto got = client.Get(chained->tensor->ref(), std::as_writable_bytes(std::span(d)));
  if (!got.ok()) {
    std::fprintf(stderr, "%s\n", got.status().ToString().c_str());
    return 1;
  }
  return d == std::vector<float>{4, 5, 10, 11} ? 0 : 1;
}

// The same product, asynchronously, into the caller's own memory.
int MultiplyLater(gemmd::Client& client) {
  const std::vector<float> a = {1, 2, 3, 4, 5, 6}, b = {1, 0, 0, 1, 1, 1};
  std::vector<float> d(4);
  gemmd::PendingProduct pending = client.MultiplyAsync(
      gemmd::View(a, 2, 3), gemmd::View(b, 3, 2), {.into = std::as_writable_bytes(std::span(d))});
  const auto product = pending.Wait();
  if (!product.ok()) {
    std::fprintf(stderr, "%s\n", product.status().ToString().c_str());
    return 1;
  }
  const bool knows_its_type = absl::IsInvalidArgument(product->elements<double>().status());
  return d == std::vector<float>{4, 5, 10, 11} && knows_its_type ? 0 : 1;
}

// Several of them on one stream, answered in any order.
int MultiplyOnAStream(gemmd::Client& client) {
  const std::vector<float> a = {1, 2, 3, 4, 5, 6}, b = {1, 0, 0, 1, 1, 1};
  auto stream = client.OpenMultiplyStream();
  for (const char* const id : {"first", "second", "third"}) {
    const absl::Status sent =
        stream->Send(gemmd::View(a, 2, 3), gemmd::View(b, 3, 2), {.request_id = id});
    if (!sent.ok()) return 1;
  }
  stream->CloseSending();
  int answers = 0;
  while (auto answer = stream->Receive()) {
    const auto product = answer->result();
    if (!product.ok() || (*product->elements<float>())[3] != 11) return 1;
    ++answers;
  }
  const absl::Status status = stream->Finish();
  std::printf("%d answers, %s\n", answers, status.ToString().c_str());
  return answers == 3 && status.ok() ? 0 : 1;
}

// The first product over TLS, with the certificates of the authority that signed the server's.
int MultiplyWithTls(const char* address, const char* ca_file) {
  auto client =
      gemmd::Client::Create(address, {.timeout = absl::Seconds(60), .tls = {.ca_file = ca_file}});
  if (!client.ok()) {
    std::fprintf(stderr, "%s\n", client.status().ToString().c_str());
    return 1;
  }
  return Multiply(*client);
}

}  // namespace

int main(int argc, char** argv) {
  if (Convert() != 0) return 1;
  // Port 1 is reserved; nothing listens there.
  auto client =
      gemmd::Client::Create(argc > 1 ? argv[1] : "127.0.0.1:1", {.timeout = absl::Seconds(60)});
  if (!client.ok()) {
    std::fprintf(stderr, "%s\n", client.status().ToString().c_str());
    return 1;
  }
  if (argc > 3) {
    return Multiply(*client) + MultiplyTensors(*client) + MultiplyLater(*client) +
           MultiplyOnAStream(*client) + MultiplyWithTls(argv[2], argv[3]);
  }
  const absl::Status status = client->CheckHealth().status();
  std::printf("%s\n", status.ToString().c_str());
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ? 0 : 1;
}
