// SPDX-License-Identifier: Apache-2.0
#include "server/product/joining.h"

#include <iterator>
#include <type_traits>
#include <utility>

#include "kernels/kernel.h"

namespace gemmd {

namespace {

// Vectors of up to so many bytes are compared as a part of the key.
constexpr int64_t kMostVectorBytes = int64_t{16} << 10;

// What says where the matrices of a job lie, at most (PlacedPart), and what lies between them.
constexpr int64_t kListedBytes = 128;

// Plain values, one after the other.
class Key {
 public:
  template <typename Value>
  void Add(Value value) {
    static_assert(std::is_arithmetic_v<Value> || std::is_enum_v<Value> || std::is_pointer_v<Value>);
    Append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void Add(Piece bytes) { Append(reinterpret_cast<const char*>(bytes.data()), bytes.size()); }
  JoinKey Take() { return std::move(bytes_); }

 private:
  void Append(const char* from, size_t count) { bytes_.insert(bytes_.end(), from, from + count); }

  JoinKey bytes_;
};

// Jobs are put together of pieces of the host's memory, or of tensors, which have such pieces
// wherever they are. A matrix that all of them read as it is may be elsewhere.
bool IsOnHost(const Source& source) { return source.block == 0; }

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

// Which matrices are tensors: a device brings those together to its own memory, and the others not.
Key KeyOfPlaces(const Job& job) {
  Key key;
  for (const OperandRole role : kMatrixRoles) key.Add(job[role].is_resident);
  key.Add(job.d.memory != nullptr);
  return key;
}

bool AddEpilogue(const Job& job, Key& key) {
  const Problem& problem = job.problem;
  key.Add(job.kernel);
  key.Add(job.keeps_kernel);
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

// Whether nothing lies between the lines of a matrix.
bool IsWhole(const MatrixLayout& layout) {
  return layout.leading_dimension == layout.line_length() &&
         layout.line_length() * BitsOf(layout.type) % 8 == 0;
}

// The bytes of an operand's indices are checked for each job, and a wrong one is no other's fault.
// A new tensor has no memory of a device yet. Factors of blocks belong to rows of one product.
bool CanJoin(const Job& job) {
  const Problem& problem = job.problem;
  if (!problem.has_output() || !problem.has_product() || problem.has_block_scales()) return false;
  if (problem.a.is_sparse() || job.d.block != 0 || job.d.is_new) return false;
  return job.d.memory == nullptr || IsWhole(problem.d);
}

// Whether the bytes are rows without gaps, to which further rows can be added.
bool IsRows(const MatrixLayout& layout, int64_t bytes) {
  return layout.order == Order::kRowMajor && layout.leading_dimension == layout.columns &&
         layout.columns * BitsOf(layout.type) % 8 == 0 &&
         bytes == layout.rows * layout.line_stride_bytes();
}

JoinKey StackedKeyOf(const Job& job) {
  const Problem& problem = job.problem;
  const bool is_stack = problem.batch == 1 && IsOnHost(job.a) && IsRows(problem.a, job.a.bytes) &&
                        IsRows(problem.d, job.d_bytes) && job.b.pieces.size() <= 1 &&
                        (!problem.has_c() || (IsOnHost(job.c) && IsRows(problem.c, job.c.bytes))) &&
                        problem.bias_axis != BiasAxis::kRows &&
                        problem.a_scale != ScaleKind::kVector;
  if (!is_stack) return {};
  Key key = KeyOfPlaces(job);
  AddForm(problem.a, key);
  AddLayout(problem.b, key);
  AddPlace(job.b, key);
  if (problem.has_c()) AddForm(problem.c, key);
  AddForm(problem.d, key);
  return AddEpilogue(job, key) ? key.Take() : JoinKey();
}

// Whether the operands of several jobs make one batch: matrices that follow each other without a
// gap, or one matrix of the device's for all.
bool AddBatched(const Source& source, const MatrixLayout& layout, int64_t batch, Key& key) {
  AddLayout(layout, key);
  if (IsOnHost(source)) return source.bytes == batch * layout.batch_stride_bytes;
  AddPlace(source, key);
  return batch == 1 || layout.batch_stride_bytes == 0;
}

JoinKey BatchedKeyOf(const Job& job) {
  const Problem& problem = job.problem;
  Key key = KeyOfPlaces(job);
  key.Add(problem.m);
  AddLayout(problem.d, key);
  const bool is_batch = AddBatched(job.a, problem.a, problem.batch, key) &&
                        AddBatched(job.b, problem.b, problem.batch, key) &&
                        (!problem.has_c() || AddBatched(job.c, problem.c, problem.batch, key)) &&
                        job.d_bytes == problem.batch * problem.d.batch_stride_bytes &&
                        AddEpilogue(job, key);
  return is_batch ? key.Take() : JoinKey();
}

int64_t CopiedBytes(const Source& source) { return IsOnHost(source) ? source.bytes : 0; }

}  // namespace

JoinKeys JoinKeysOf(const Job& job) {
  if (!CanJoin(job)) return {};
  if (job.kernel->batch_invariant) {
    return {.stacked = StackedKeyOf(job), .batched = BatchedKeyOf(job)};
  }
  if (!job.may_vary || !job.b.is_resident || !MayVaryJoined(*job.kernel)) return {};
  return {.stacked = StackedKeyOf(job), .batched = {}};
}

bool MayVaryJoined(const Kernel& kernel) {
  return kernel.device_kind == DeviceKind::kCpu && !kernel.batch_invariant;
}

int64_t JoinBytesOf(const Job& job, Joining joining) {
  const int64_t b_bytes = joining == Joining::kStacked ? 0 : CopiedBytes(job.b);
  return CopiedBytes(job.a) + b_bytes + CopiedBytes(job.c) + job.d_bytes + kListedBytes;
}

bool OverwrittenPlaces::Add(const Job& job) {
  const std::byte* const begin = job.d.memory;
  if (begin == nullptr) return true;
  const std::byte* const end = begin + job.d_bytes;
  const auto after = ends_.lower_bound(begin);
  if (after != ends_.end() && after->first == begin) return after->second == end;
  if (after != ends_.end() && after->first < end) return false;
  if (after != ends_.begin() && std::prev(after)->second > begin) return false;
  ends_.emplace_hint(after, begin, end);
  return true;
}

}  // namespace gemmd
