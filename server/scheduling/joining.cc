// SPDX-License-Identifier: Apache-2.0
#include "server/scheduling/joining.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

#include "kernels/kernel.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"

namespace gemmd {
namespace {

// Vectors of up to so many bytes are compared as a part of the key.
constexpr int64_t kMostVectorBytes = int64_t{16} << 10;

// Plain values, one after the other.
class Key {
 public:
  template <typename Value>
  void Add(Value value) {
    static_assert(std::is_arithmetic_v<Value> || std::is_enum_v<Value> || std::is_pointer_v<Value>);
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void Add(Piece bytes) { text_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size()); }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

// Jobs are put together of pieces of the host's memory. A matrix that all of them read as it is may
// be elsewhere.
bool IsOnHost(const Source& source) { return source.block == 0; }
bool IsHere(const Source& source) { return IsOnHost(source) && !source.is_away; }

// Whether both are the same bytes in the same place.
bool IsSame(const Source& x, const Source& y) {
  if (x.block != y.block || x.offset != y.offset || x.bytes != y.bytes) return false;
  if (!IsOnHost(x)) return true;
  return x.pieces.size() == 1 && y.pieces.size() == 1 &&
         x.pieces.front().data() == y.pieces.front().data();
}

// Vectors are compared byte by byte: bias and scales come with each product anew.
bool AddVector(const Source& source, Key& key) {
  key.Add(source.bytes);
  if (!IsOnHost(source) || source.bytes > kMostVectorBytes) return false;
  for (const Piece piece : source.pieces) key.Add(piece);
  return true;
}

void AddPlace(const Source& source, Key& key) {
  key.Add(source.block);
  key.Add(source.offset);
  key.Add(source.bytes);
  if (IsOnHost(source) && !source.pieces.empty()) key.Add(source.pieces.front().data());
}

// All of a layout but the count of lines and the batch.
void AddForm(const MatrixLayout& layout, Key& key) {
  key.Add(layout.type);
  key.Add(layout.order);
  key.Add(layout.leading_dimension);
}

void AddLayout(const MatrixLayout& layout, Key& key) {
  AddForm(layout, key);
  key.Add(layout.rows);
  key.Add(layout.columns);
}

bool AddEpilogue(const Job& job, Key& key) {
  const Problem& problem = job.problem;
  key.Add(job.kernel);
  key.Add(problem.n);
  key.Add(problem.k);
  key.Add(problem.accumulation);
  key.Add(problem.bit_operation);
  key.Add(problem.alpha);
  key.Add(problem.beta);
  key.Add(problem.bias_axis);
  key.Add(problem.bias_type);
  key.Add(problem.a_scale);
  key.Add(problem.b_scale);
  key.Add(problem.activation);
  return AddVector(job.bias, key) && AddVector(job.a_scale, key) && AddVector(job.b_scale, key);
}

// The bytes of an operand's indices are checked for each job, and a wrong one is no other's fault.
bool CanJoin(const Job& job) {
  const Problem& problem = job.problem;
  return job.kernel->batch_invariant && problem.has_output() && problem.has_product() &&
         !problem.a.is_sparse() && job.d.block == 0 && job.d.memory == nullptr;
}

// Whether the bytes are rows without gaps, to which further rows can be added.
bool IsRows(const MatrixLayout& layout, int64_t bytes) {
  return layout.order == Order::kRowMajor && layout.leading_dimension == layout.columns &&
         layout.columns * BitsOf(layout.type) % 8 == 0 &&
         bytes == layout.rows * layout.line_stride_bytes();
}

std::string StackedKeyOf(const Job& job) {
  const Problem& problem = job.problem;
  const bool is_stack = problem.batch == 1 && IsHere(job.a) && IsRows(problem.a, job.a.bytes) &&
                        IsRows(problem.d, job.d_bytes) && job.b.pieces.size() <= 1 &&
                        (!problem.has_c() || (IsHere(job.c) && IsRows(problem.c, job.c.bytes))) &&
                        problem.bias_axis != BiasAxis::kRows &&
                        problem.a_scale != ScaleKind::kVector;
  if (!is_stack) return "";
  Key key;
  AddForm(problem.a, key);
  AddLayout(problem.b, key);
  AddPlace(job.b, key);
  if (problem.has_c()) AddForm(problem.c, key);
  AddForm(problem.d, key);
  return AddEpilogue(job, key) ? key.Take() : "";
}

// Whether the operands of several jobs make one batch: matrices that follow each other without a
// gap, or one matrix of the device's for all.
bool AddBatched(const Source& source, const MatrixLayout& layout, int64_t batch, Key& key) {
  AddLayout(layout, key);
  if (source.is_away) return false;
  if (IsOnHost(source)) return source.bytes == batch * layout.batch_stride_bytes;
  AddPlace(source, key);
  return batch == 1 || layout.batch_stride_bytes == 0;
}

std::string BatchedKeyOf(const Job& job) {
  const Problem& problem = job.problem;
  Key key;
  key.Add(problem.m);
  AddLayout(problem.d, key);
  const bool is_batch = AddBatched(job.a, problem.a, problem.batch, key) &&
                        AddBatched(job.b, problem.b, problem.batch, key) &&
                        (!problem.has_c() || AddBatched(job.c, problem.c, problem.batch, key)) &&
                        job.d_bytes == problem.batch * problem.d.batch_stride_bytes &&
                        AddEpilogue(job, key);
  return is_batch ? key.Take() : "";
}

int64_t CopiedBytes(const Source& source) { return IsOnHost(source) ? source.bytes : 0; }

}  // namespace

JoinKeys JoinKeysOf(const Job& job) {
  if (!CanJoin(job)) return {};
  return {.stacked = StackedKeyOf(job), .batched = BatchedKeyOf(job)};
}

int64_t JoinBytesOf(const Job& job) {
  return CopiedBytes(job.a) + CopiedBytes(job.c) + job.d_bytes;
}

absl::StatusOr<std::unique_ptr<JoinedJob>> JoinedJob::Of(Joining joining,
                                                         std::vector<const Job*> members) {
  std::unique_ptr<JoinedJob> joined(new JoinedJob(std::move(members)));
  RETURN_IF_ERROR(joined->Join(joining));
  return joined;
}

absl::Status JoinedJob::Join(Joining joining) {
  job_ = *members_.front();
  joining == Joining::kStacked ? Stack() : Batch();
  RETURN_IF_ERROR(Validate(job_.problem));
  RETURN_IF_ERROR(job_.kernel->supports(job_.problem));
  job_.d_bytes = BytesWritten(job_.problem);
  ASSIGN_OR_RETURN(job_.workspace_bytes, job_.kernel->workspace_bytes(job_.problem));
  return absl::OkStatus();
}

// The pieces of all members, in their order.
Source JoinedJob::Concatenated(Source Job::*of) {
  std::vector<Piece> pieces;
  for (const Job* const member : members_) {
    const absl::Span<const Piece> own = (member->*of).pieces;
    pieces.insert(pieces.end(), own.begin(), own.end());
  }
  return pieces_.Add(std::move(pieces));
}

void JoinedJob::Stack() {
  Problem& problem = job_.problem;
  problem.m = 0;
  for (const Job* const member : members_) problem.m += member->problem.m;
  for (MatrixLayout* const layout : {&problem.a, &problem.c, &problem.d}) {
    layout->rows = problem.m;
    layout->batch_stride_bytes = problem.m * layout->line_stride_bytes();
  }
  job_.a = Concatenated(&Job::a);
  if (problem.has_c()) job_.c = Concatenated(&Job::c);
}

void JoinedJob::Batch() {
  Problem& problem = job_.problem;
  problem.batch = 0;
  for (const Job* const member : members_) problem.batch += member->problem.batch;
  Together(&Job::a, problem.a);
  Together(&Job::b, problem.b);
  if (problem.has_c()) Together(&Job::c, problem.c);
}

// The matrices of all members as one operand.
void JoinedJob::Together(Source Job::*of, MatrixLayout& layout) {
  const Source& first = members_.front()->*of;
  const bool is_one = std::all_of(members_.begin(), members_.end(), [&](const Job* member) {
    return member->problem.batch == 1 && IsSame(member->*of, first);
  });
  if (is_one || !IsOnHost(first)) {
    layout.batch_stride_bytes = 0;
  } else {
    job_.*of = Concatenated(of);
  }
}

std::vector<absl::StatusOr<HeldBytes>> JoinedJob::Split(absl::Span<const std::byte> d) const {
  std::vector<absl::StatusOr<HeldBytes>> parts;
  parts.reserve(members_.size());
  for (const Job* const member : members_) {
    const auto bytes = static_cast<size_t>(member->d_bytes);
    std::optional<HeldBytes> part = HeldBytes::Zeros(member->d_bytes);
    if (part) {
      std::memcpy(part->bytes().data(), d.data(), bytes);
      parts.push_back(*std::move(part));
    } else {
      parts.push_back(absl::ResourceExhaustedError(
          Concat("d: no memory for ", member->d_bytes, " bytes of a result")));
    }
    d.remove_prefix(bytes);
  }
  return parts;
}

}  // namespace gemmd
