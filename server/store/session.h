// SPDX-License-Identifier: Apache-2.0
//
// The owner of tensors, as the store keeps it.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/store/account.h"
#include "server/store/random_id.h"
#include "server/store/sha256.h"
#include "server/store/tensor.h"
#include "server/store/upload.h"

namespace gemmd {

// What the store knows of a tensor of a session.
struct TensorEntry {
  std::shared_ptr<const Tensor> tensor;
  int64_t lease_ns = 0;
  bool pinned = false;
  int64_t used_ns = 0;  // When its last use ended.
  int users = 0;        // Products and answers that have it now.
  int64_t products = 0;
  bool was_lost = false;  // It counts among those that were lost.

  bool HasExpired(int64_t now_ns) const {
    return !pinned && users == 0 && now_ns - used_ns >= lease_ns;
  }
};

// Who opens a session, where owners are known by name.
struct SessionOwner {
  bool is_known = false;
  // Has shown who it is, so its tensors are its own, not a session's: all that it opens are one.
  bool has_one_session = false;
  std::string rule = {};  // That of the rules by which it is known.
  int64_t max_bytes = std::numeric_limits<int64_t>::max();         // All its sessions together.
  int64_t max_device_bytes = std::numeric_limits<int64_t>::max();  // On all devices, likewise.
};

// All of it is guarded by the store's lock; constant is what says so.
struct Session {
  // What tensors share. Sparse ones share memory only where their shape and type are the same too:
  // which indices are good depends on them. They are 0 for dense ones.
  using Content = std::tuple<Sha256Digest, Sparsity, ElementType, int64_t, int64_t>;
  static Content ContentOf(const TensorSpec& spec, const Sha256Digest& digest) {
    const MatrixLayout& layout = spec.layout;
    if (!layout.is_sparse()) return {digest, layout.sparsity, {}, 0, 0};
    return {digest, layout.sparsity, layout.type, layout.rows, layout.columns};
  }

  Session(const RandomId& session_token, std::string session_peer, const SessionOwner& owner,
          std::shared_ptr<Account> session_account)
      : token(session_token),
        peer(std::move(session_peer)),
        is_of_known_owner(owner.is_known),
        is_all_of_owner(owner.has_one_session),
        rule(owner.rule),
        account(std::move(session_account)) {}

  const RandomId token;
  const std::string peer;  // A host, or the name of a known owner.
  const bool is_of_known_owner;
  // It is all sessions of an owner in one: its tensors do not go because nobody is connected.
  const bool is_all_of_owner;
  std::string rule;  // Empty where owners are not known by name.
  const std::shared_ptr<Account> account;
  int64_t used_ns = 0;  // When its last use ended.
  // No call looks for expired tensors before this time.
  int64_t swept_until_ns = std::numeric_limits<int64_t>::min();
  int users = 0;  // Streams, calls and products.
  bool is_over = false;
  absl::flat_hash_map<RandomId, TensorEntry> tensors;
  absl::flat_hash_map<std::string, RandomId> names;
  absl::flat_hash_map<RandomId, std::shared_ptr<Upload>> uploads;
  absl::flat_hash_map<Content, std::weak_ptr<TensorBytes>> contents;
};

}  // namespace gemmd
