// SPDX-License-Identifier: Apache-2.0
//
// Requests about resident tensors: chunks, whose own parser is compared with protobuf's, and
// specifications and parts, whose sizes are compared in 128 bits.
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/transfer.h"
#include "gemmd/v1/gemm.pb.h"
#include "gemmd/v1/resident.pb.h"
#include "gemmd/v1/tensors.pb.h"
#include "server/wire/convert.h"
#include "server/wire/tensor_convert.h"
#include "tests/fuzz/target.h"

namespace gemmd::fuzz {
namespace {

using google::protobuf::Message;

std::string DataOf(const PutMessage::Chunk& chunk) {
  std::string data;
  for (const auto& piece : chunk.pieces) {
    data.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  return data;
}

// As long as allowed, or longer.
void Stretch(v1::PutRequest& request, Choices& choices) {
  const size_t sizes[] = {kMaxChunkBytes - 1, kMaxChunkBytes, kMaxChunkBytes + 1, kMaxPutBytes + 1};
  const size_t size = sizes[choices.Below(std::size(sizes))];
  if (request.has_chunk()) return request.mutable_chunk()->mutable_data()->resize(size);
  if (request.has_begin()) return request.mutable_begin()->mutable_sha256()->resize(size);
  request.mutable_join()->resize(size);
}

void RunPut(std::string_view input) {
  Choices choices(input);
  v1::PutRequest want;
  const bool is_message = want.ParseFromArray(input.data(), static_cast<int>(input.size()));
  std::string bytes(input);
  if (is_message && choices.OnceIn(1024)) {
    Stretch(want, choices);
    bytes = want.SerializeAsString();
  }
  const absl::StatusOr<PutMessage> got = ReadPutRequest(Cut(bytes, choices));
  const bool is_short = bytes.size() <= kMaxPutBytes &&
                        static_cast<int64_t>(want.chunk().data().size()) <= kMaxChunkBytes;
  Demand(got.ok() == (is_message && is_short), "protobuf takes another request of Put");
  if (!is_short) return;
  if (!is_message) return;
  Demand(got->chunk.has_value() == (want.step_case() == v1::PutRequest::kChunk),
         "a request of Put is a chunk for one reader alone");
  if (!got->chunk) {
    want.DiscardUnknownFields();
    Demand(got->other.SerializeAsString() == want.SerializeAsString(),
           "protobuf parses another request of Put");
    return;
  }
  Demand(got->chunk->offset == want.chunk().offset(), "a chunk begins elsewhere");
  Demand(DataOf(*got->chunk) == want.chunk().data(), "a chunk has other bytes");
  // Through the client's own writer.
  const std::string again =
      PutChunkHeader(got->chunk->offset, want.chunk().data().size()) + want.chunk().data();
  v1::PutRequest read;
  Demand(read.ParseFromString(again) && read.chunk().offset() == want.chunk().offset() &&
             read.chunk().data() == want.chunk().data(),
         "the client writes another chunk");
}

// How the client reads the stream of Put.
void CheckPutAnswer(std::string_view input, Choices& choices) {
  v1::PutResponse want;
  const bool is_message = want.ParseFromArray(input.data(), static_cast<int>(input.size()));
  const auto got = ReadPutResponse(Cut(input, choices));
  Demand(got.ok() == is_message, "protobuf takes another answer of Put");
  if (!is_message) return;
  Demand(got->SerializeAsString() == want.SerializeAsString(),
         "protobuf parses another answer of Put");
  const auto again = ReadPutResponse(ToByteBuffer(*got));
  Demand(again.ok() && again->SerializeAsString() == want.SerializeAsString(),
         "an answer of Put is written otherwise");
}

void RunGet(std::string_view input) {
  Choices choices(input);
  CheckPutAnswer(input, choices);
  v1::GetResponse want;
  const bool is_message = want.ParseFromArray(input.data(), static_cast<int>(input.size())) &&
                          want.step_case() != v1::GetResponse::STEP_NOT_SET;
  const absl::StatusOr<GetStep> got = ReadGetResponse(Cut(input, choices));
  Demand(got.ok() == is_message, "protobuf takes another answer of Get");
  if (!is_message) return;
  Demand(got->is_chunk == want.has_chunk(), "an answer of Get is a chunk for one reader alone");
  if (!got->is_chunk) {
    Demand(got->tensor.SerializeAsString() == want.tensor().SerializeAsString(),
           "protobuf parses another tensor");
    return;
  }
  std::string data;
  for (const grpc::Slice& slice : got->data) {
    data.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  Demand(got->offset == want.chunk().offset() && data == want.chunk().data() &&
             got->bytes == static_cast<int64_t>(data.size()),
         "a chunk of Get is another one");
  // Through the server's own writer.
  const auto bytes = std::make_shared<const std::string>(std::move(data));
  const auto answer = ReadGetResponse(ChunkAnswer(
      got->offset, {reinterpret_cast<const std::byte*>(bytes->data()), bytes->size()}, bytes));
  Demand(answer.ok() && answer->is_chunk && answer->offset == got->offset &&
             answer->bytes == got->bytes,
         "the server writes another chunk");
}

// A product of one tensor that overwrites another one: Operand and OutputSpec have all the fields
// that name parts.
void CheckPart(const v1::TensorPart& wire, const TensorSpec& spec, const PartOfTensor& other) {
  const auto part = ParsePart("a", wire, spec);
  if (!part.ok()) return;
  const MatrixLayout& layout = spec.layout;
  Demand(part->first_row >= 0 && part->rows >= 0 && part->first_row <= layout.rows - part->rows,
         "a part has rows that there are not");
  Demand(part->first_column >= 0 && part->columns >= 0 &&
             part->first_column <= layout.columns - part->columns,
         "a part has columns that there are not");
  Demand(part->first_matrix >= 0 && part->matrices >= 0 &&
             part->first_matrix <= spec.matrices - part->matrices,
         "a part has matrices that there are not");
  const bool is_empty = part->rows == 0 || part->columns == 0 || part->matrices == 0;
  Demand(part->offset_bytes >= 0 && (is_empty || part->offset_bytes < spec.bytes),
         "a part begins outside of its tensor");
  (void)CheckWholeBytes("a", *part, spec);
  (void)CheckShape("a", *part, other.rows, other.columns, other.matrices, true);
  Demand(Overlap(*part, other) == Overlap(other, *part), "an overlap has one side");
  Demand(is_empty || Overlap(*part, *part), "a part does not overlap itself");
}

__extension__ using Wide = __int128;

// Computes the bytes of a specification a second time.
Wide WideBytes(const TensorSpec& spec) {
  const MatrixLayout& layout = spec.layout;
  if (layout.empty() || spec.matrices == 0) return 0;
  if (layout.is_sparse()) return Wide{layout.batch_stride_bytes} * spec.matrices;
  const Wide line = (Wide{layout.leading_dimension} * BitsOf(layout.type) + 7) / 8;
  return line * layout.lines() * spec.matrices;
}

void RunTensor(std::string_view input) {
  // A PutBegin for the tensor, followed by a message with parts of the tensor.
  v1::MultiplyRequest request;
  (void)request.ParseFromArray(input.data(), static_cast<int>(input.size()));
  v1::TensorSpec wire;
  wire.set_type(request.a().type());
  wire.set_order(request.a().order());
  wire.set_rows(request.m());
  wire.set_columns(request.n());
  wire.set_leading_dimension(request.a().leading_dimension());
  if (request.has_batch()) wire.set_matrices(request.batch());
  wire.set_sparsity(request.a().sparsity());
  *wire.mutable_scale() = request.a().scale();
  (void)ParseTensorRef("tensor", request.a().tensor().tensor());
  const absl::StatusOr<TensorSpec> spec = ParseTensorSpec(wire);
  if (!spec.ok()) return;
  Demand(spec->bytes >= 0 && Wide{spec->bytes} == WideBytes(*spec), "a tensor has other bytes");
  Demand(spec->layout.rows == wire.rows() && spec->layout.columns == wire.columns(),
         "a tensor has another shape");
  PartOfTensor other;
  const auto whole = ParsePart("b", request.b().tensor(), *spec);
  if (whole.ok()) other = *whole;
  CheckPart(request.a().tensor(), *spec, other);
  CheckPart(request.b().tensor(), *spec, other);
  CheckPart(request.d().tensor(), *spec, other);
}

void RepairTensor(Message& message, Choices& choices) {
  auto& request = static_cast<v1::MultiplyRequest&>(message);
  if (request.a().type() < 1 || request.a().type() > 16) {
    request.mutable_a()->set_type(static_cast<v1::ElementType>(1 + choices.Below(16)));
  }
  if (choices.OnceIn(3)) return;
  request.set_m(request.m() & 1023);
  request.set_n(request.n() & 1023);
  if (request.has_batch()) request.set_batch(request.batch() & 7);
  request.mutable_a()->set_leading_dimension(0);
  const auto fit = [&](v1::TensorPart& part) {
    part.set_first_row(part.first_row() & 31);
    part.set_first_column(part.first_column() & 31);
    part.set_first_matrix(part.first_matrix() & 1);
    if (part.has_rows()) part.set_rows(part.rows() & 31);
    if (part.has_columns()) part.set_columns(part.columns() & 31);
  };
  fit(*request.mutable_a()->mutable_tensor());
  fit(*request.mutable_b()->mutable_tensor());
}

using std::string_literals::operator""s;

std::vector<std::string> PutSeeds() {
  v1::PutRequest begin;
  begin.mutable_begin()->mutable_spec()->set_type(v1::ELEMENT_TYPE_F16);
  begin.mutable_begin()->mutable_spec()->set_rows(4);
  begin.mutable_begin()->mutable_keep()->set_name("weights");
  begin.mutable_begin()->set_sha256(std::string(32, 'h'));
  v1::PutRequest join;
  join.set_join(std::string(16, 'u'));
  v1::PutRequest chunk;
  chunk.mutable_chunk()->set_offset(1000);
  chunk.mutable_chunk()->set_data(std::string(300, 'd'));
  return {begin.SerializeAsString(), join.SerializeAsString(), chunk.SerializeAsString(),
          PutChunkHeader(0, 5) + "12345",
          // Numbers of more bytes than protobuf accepts in a tag or a length.
          "\x9a\x80\x80\x80\x80\x00\x03\x12\x01x"s, "\x1a\x83\x80\x80\x80\x80\x00\x12\x01x"s,
          "\x1a\x08\x12\x81\x80\x80\x80\x80\x00x"s,
          chunk.SerializeAsString() + begin.SerializeAsString()};
}

std::vector<std::string> GetSeeds() {
  v1::GetResponse tensor;
  tensor.mutable_tensor()->set_handle(std::string(16, 'h'));
  tensor.mutable_tensor()->set_name("weights");
  v1::GetResponse chunk;
  chunk.mutable_chunk()->set_offset(1000);
  chunk.mutable_chunk()->set_data(std::string(300, 'd'));
  return {tensor.SerializeAsString(), chunk.SerializeAsString(),
          "\x12\x83\x80\x80\x80\x80\x00\x12\x01x"s, "\x12\x08\x12\x81\x80\x80\x80\x80\x00x"s,
          tensor.SerializeAsString() + chunk.SerializeAsString()};
}

std::vector<std::string> TensorSeeds() {
  std::vector<std::string> seeds;
  for (int type = 1; type <= 16; ++type) {
    v1::MultiplyRequest request;
    request.set_m(type * 8);
    request.set_n(64);
    request.set_batch(type % 3);
    request.mutable_a()->set_type(static_cast<v1::ElementType>(type));
    request.mutable_a()->set_order(static_cast<v1::Order>(type % 2));
    if (type % 4 == 0) request.mutable_a()->set_sparsity(v1::SPARSITY_2_4);
    if (type == 4) request.mutable_a()->set_order(v1::ORDER_COLUMN_MAJOR);
    if (type == 8) request.mutable_a()->set_leading_dimension(64);
    for (int i = 0; type % 5 == 0 && i < type; ++i) {
      request.mutable_a()->mutable_scale()->add_values(1);
    }
    v1::TensorPart& part = *request.mutable_b()->mutable_tensor();
    part.mutable_tensor()->set_name("weights");
    part.set_first_row(type % 5);
    part.set_rows(3);
    part.set_first_column(8);
    part.set_columns(16);
    *request.mutable_a()->mutable_tensor() = part;
    request.mutable_a()->mutable_tensor()->mutable_tensor()->set_handle(std::string(16, 'h'));
    seeds.push_back(request.SerializeAsString());
  }
  return seeds;
}

}  // namespace

std::vector<Target> TensorTargets() {
  return {{"put", RunPut, PutSeeds, DefaultOf<v1::PutRequest>},
          {"get", RunGet, GetSeeds, DefaultOf<v1::GetResponse>},
          {"tensor", RunTensor, TensorSeeds, DefaultOf<v1::MultiplyRequest>, RepairTensor}};
}

}  // namespace gemmd::fuzz
