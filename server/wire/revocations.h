// SPDX-License-Identifier: Apache-2.0
//
// Certificates that their authority has taken back before their time.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gemmd {

class Revocations {
 public:
  // Both are PEM: lists (X509 CRL), each of one of the authorities and signed by it.
  // Errors: InvalidArgument, naming --client-crl and the file.
  static absl::StatusOr<std::shared_ptr<const Revocations>> Read(const std::string& lists,
                                                                 const std::string& authorities,
                                                                 const std::string& file);
  ~Revocations();

  // Whether a peer's own certificate, in PEM, is on no list of its authority. A list counts until
  // it is replaced, also when its next one is late. Threads: any.
  // Errors: Unauthenticated.
  absl::Status Check(std::string_view certificate) const;

 private:
  struct Lists;
  explicit Revocations(std::unique_ptr<Lists> lists);

  const std::unique_ptr<Lists> lists_;
};

}  // namespace gemmd
