// SPDX-License-Identifier: Apache-2.0
#include "client/matrix/safetensors.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <system_error>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/matrix/status.h"
#include "nlohmann/json.hpp"

namespace gemmd {
namespace {

// The format's own limit.
constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// The field in front of the header.
constexpr int64_t kSafetensorsLengthBytes = 8;

constexpr char kMetadataName[] = "__metadata__";

struct TypeRow {
  absl::string_view name;
  int bits;
  v1::ElementType type;
};

constexpr TypeRow kTypes[] = {
    {"F64", 64, v1::ELEMENT_TYPE_F64},
    {"F32", 32, v1::ELEMENT_TYPE_F32},
    {"F16", 16, v1::ELEMENT_TYPE_F16},
    {"BF16", 16, v1::ELEMENT_TYPE_BF16},
    {"F8_E4M3", 8, v1::ELEMENT_TYPE_E4M3},
    {"F8_E5M2", 8, v1::ELEMENT_TYPE_E5M2},
    {"F6_E3M2", 6, v1::ELEMENT_TYPE_E3M2},
    {"F6_E2M3", 6, v1::ELEMENT_TYPE_E2M3},
    {"F4", 4, v1::ELEMENT_TYPE_E2M1},
    {"I8", 8, v1::ELEMENT_TYPE_S8},
    {"U8", 8, v1::ELEMENT_TYPE_U8},
    {"I32", 32, v1::ELEMENT_TYPE_S32},
    {"BOOL", 8, v1::ELEMENT_TYPE_B1},
    {"I16", 16, v1::ELEMENT_TYPE_UNSPECIFIED},
    {"U16", 16, v1::ELEMENT_TYPE_UNSPECIFIED},
    {"U32", 32, v1::ELEMENT_TYPE_UNSPECIFIED},
    {"I64", 64, v1::ELEMENT_TYPE_UNSPECIFIED},
    {"U64", 64, v1::ELEMENT_TYPE_UNSPECIFIED},
    {"C64", 64, v1::ELEMENT_TYPE_UNSPECIFIED},
    {"F8_E8M0", 8, v1::ELEMENT_TYPE_UNSPECIFIED},
};

const TypeRow* RowOf(absl::string_view name) {
  const auto* row = std::find_if(std::begin(kTypes), std::end(kTypes),
                                 [&](const TypeRow& known) { return known.name == name; });
  return row == std::end(kTypes) ? nullptr : row;
}

// Quotes a name from an untrusted file for an error message.
std::string Quoted(absl::string_view name) {
  constexpr size_t kMaxLetters = 100;
  return absl::StrCat("\"", absl::CHexEscape(name.substr(0, kMaxLetters)),
                      name.size() > kMaxLetters ? "..." : "", "\"");
}

// Parses the JSON as a stream, without building a tree.
class Reader : public nlohmann::json_sax<nlohmann::json> {
 public:
  absl::StatusOr<SafetensorsHeader> Take(bool is_parsed) && {
    if (is_parsed) return std::move(header_);
    return absl::InvalidArgumentError(absl::StrCat("safetensors header: ", error_));
  }

  bool null() override {
    const bool is_no_metadata = place_ == Place::kTensors && key_ == kMetadataName;
    return is_no_metadata || ShouldSkip() || Refuse("null");
  }
  bool boolean(bool) override { return ShouldSkip() || Refuse("a boolean"); }
  bool number_float(double, const std::string&) override {
    return ShouldSkip() || Refuse("a fraction");
  }
  bool binary(nlohmann::json::binary_t&) override { return Refuse("binary"); }

  bool number_integer(int64_t value) override {
    return ShouldSkip() || Refuse(absl::StrCat(value));
  }

  bool number_unsigned(uint64_t value) override {
    if (ShouldSkip()) return true;
    if (numbers_ == nullptr || value > uint64_t{INT64_MAX}) return Refuse(absl::StrCat(value));
    numbers_->push_back(static_cast<int64_t>(value));
    return true;
  }

  bool string(std::string& value) override {
    if (ShouldSkip()) return true;
    if (place_ == Place::kMetadata) {
      header_.metadata.emplace_back(key_, std::move(value));
      return true;
    }
    if (place_ != Place::kTensor || key_ != "dtype") return Refuse("a string");
    header_.tensors.back().type = std::move(value);
    return true;
  }

  bool start_object(size_t) override {
    if (EnterSkipped()) return true;
    if (place_ == Place::kStart) {
      place_ = Place::kTensors;
    } else if (place_ == Place::kTensors && key_ == kMetadataName) {
      place_ = Place::kMetadata;
    } else if (place_ == Place::kTensors) {
      place_ = Place::kTensor;
      header_.tensors.push_back({.name = key_});
      offsets_.clear();
      keys_ = 0;
    } else {
      return Refuse("an object");
    }
    return true;
  }

  bool end_object() override {
    if (LeaveSkipped()) return true;
    if (place_ == Place::kTensor && !EndTensor()) return false;
    place_ = place_ == Place::kTensors ? Place::kEnd : Place::kTensors;
    return true;
  }

  bool start_array(size_t) override {
    if (EnterSkipped()) return true;
    if (place_ == Place::kTensor && key_ == "shape") {
      numbers_ = &header_.tensors.back().shape;
    } else if (place_ == Place::kTensor && key_ == "data_offsets") {
      numbers_ = &offsets_;
    } else {
      return Refuse("an array");
    }
    place_ = Place::kNumbers;
    return true;
  }

  bool end_array() override {
    if (LeaveSkipped()) return true;
    numbers_ = nullptr;
    place_ = Place::kTensor;
    return true;
  }

  bool key(std::string& value) override {
    if (skipped_depth_ > 0) return true;
    key_ = std::move(value);
    if (place_ == Place::kTensors && key_ == kMetadataName && std::exchange(has_metadata_, true)) {
      error_ = absl::StrCat("got ", Quoted(key_), " twice, want it once");
      return false;
    }
    if (place_ != Place::kTensor) return true;
    constexpr absl::string_view kKeys[] = {"dtype", "shape", "data_offsets"};
    const auto* const known = std::find(std::begin(kKeys), std::end(kKeys), key_);
    is_skipped_ = known == std::end(kKeys);
    if (is_skipped_) return true;
    const unsigned bit = 1u << (known - std::begin(kKeys));
    if ((keys_ & bit) != 0) return RefuseKeys(Quoted(key_));
    keys_ |= bit;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    error_ = absl::StrCat("got no JSON at byte ", position, ", want an object of tensors");
    return false;
  }

 private:
  enum class Place { kStart, kTensors, kMetadata, kTensor, kNumbers, kEnd };

  // Unknown keys of a tensor are skipped with all that they contain, as the format's own library
  // does.
  bool ShouldSkip() {
    if (skipped_depth_ > 0) return true;
    return std::exchange(is_skipped_, false);
  }
  bool EnterSkipped() {
    if (!ShouldSkip()) return false;
    ++skipped_depth_;
    return true;
  }
  bool LeaveSkipped() {
    if (skipped_depth_ == 0) return false;
    --skipped_depth_;
    return true;
  }

  std::string Where() const {
    return header_.tensors.empty() || place_ == Place::kTensors
               ? Quoted(key_)
               : absl::StrCat("tensor ", Quoted(header_.tensors.back().name));
  }

  bool Refuse(absl::string_view got) {
    error_ = absl::StrCat(Where(), ": got ", got,
                          ", want {\"NAME\": {\"dtype\": \"F32\", \"shape\": [...], "
                          "\"data_offsets\": [begin, end]}, ...} of whole numbers from 0 on");
    return false;
  }

  bool RefuseKeys(absl::string_view got) {
    error_ = absl::StrCat(Where(), ": got ", got,
                          ", want each of the keys dtype, shape and data_offsets once");
    return false;
  }

  bool EndTensor() {
    if (keys_ != 7) return RefuseKeys("too few keys");
    if (offsets_.size() != 2) return Refuse(absl::StrCat(offsets_.size(), " offsets"));
    header_.tensors.back().begin = offsets_[0];
    header_.tensors.back().end = offsets_[1];
    return true;
  }

  Place place_ = Place::kStart;
  std::string key_;
  unsigned keys_ = 0;  // Bit set of the keys that the tensor had.
  bool has_metadata_ = false;
  bool is_skipped_ = false;  // Whether the value of the key is skipped.
  int64_t skipped_depth_ = 0;
  std::vector<int64_t>* numbers_ = nullptr;
  std::vector<int64_t> offsets_;
  SafetensorsHeader header_;
  std::string error_;
};

absl::Status Fault(const SafetensorsEntry& tensor, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("safetensors header: tensor ", Quoted(tensor.name), ": ", what));
}

absl::Status CheckTensor(const SafetensorsEntry& tensor) {
  const auto bytes = SafetensorsBytes(tensor.type, tensor.shape);
  if (!bytes.ok()) return Fault(tensor, bytes.status().message());
  if (tensor.end < tensor.begin || tensor.bytes() != *bytes) {
    return Fault(tensor, absl::StrCat("data_offsets: got ", tensor.begin, " to ", tensor.end,
                                      ", want ", *bytes, " bytes as its shape has"));
  }
  return absl::OkStatus();
}

// Each tensor must begin where the previous one ends.
absl::Status CheckLayout(const SafetensorsHeader& header, int64_t data_bytes) {
  int64_t end = 0;
  for (const SafetensorsEntry& tensor : header.tensors) {
    RETURN_IF_ERROR(CheckTensor(tensor));
    if (tensor.begin != end) {
      return Fault(tensor, absl::StrCat("data_offsets: got ", tensor.begin, ", want ", end,
                                        ", where the tensor before it ends"));
    }
    end = tensor.end;
  }
  if (end == data_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("safetensors data: got ", data_bytes,
                                                 " bytes, want ", end, " as the header says"));
}

absl::Status CheckUnique(absl::string_view what, std::vector<absl::string_view> names) {
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("safetensors header: got two ", what, " ", Quoted(*twice), ", want one"));
}

absl::Status CheckNames(const SafetensorsHeader& header) {
  std::vector<absl::string_view> tensors, texts;
  for (const SafetensorsEntry& tensor : header.tensors) tensors.push_back(tensor.name);
  for (const auto& [name, text] : header.metadata) texts.push_back(name);
  RETURN_IF_ERROR(CheckUnique("tensors", std::move(tensors)));
  return CheckUnique("texts of __metadata__", std::move(texts));
}

}  // namespace

v1::ElementType TypeOfSafetensors(absl::string_view type) {
  const TypeRow* const row = RowOf(type);
  return row == nullptr ? v1::ELEMENT_TYPE_UNSPECIFIED : row->type;
}

absl::string_view SafetensorsTypeOf(v1::ElementType type) {
  if (type == v1::ELEMENT_TYPE_TF32) return "F32";
  if (type == v1::ELEMENT_TYPE_UNSPECIFIED) return "";
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return row.name;
  }
  return "";
}

absl::StatusOr<int64_t> SafetensorsBytes(absl::string_view type,
                                         const std::vector<int64_t>& shape) {
  const TypeRow* const row = RowOf(type);
  if (row == nullptr) {
    const auto name = [](std::string* text, const TypeRow& known) {
      absl::StrAppend(text, known.name);
    };
    return absl::InvalidArgumentError(absl::StrCat("dtype: got ", Quoted(type), ", want one of ",
                                                   absl::StrJoin(kTypes, ", ", name)));
  }
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  int64_t bits = row->bits;
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(bits, extent, &bits)) {
      return absl::InvalidArgumentError("shape: got a size of 2^63 bits or more, want less");
    }
  }
  if (bits % 8 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("shape: got ", bits, " bits, want whole bytes"));
  }
  return bits / 8;
}

absl::StatusOr<int64_t> SafetensorsHeaderBytes(absl::string_view length_field, int64_t file_bytes) {
  if (static_cast<int64_t>(length_field.size()) != kSafetensorsLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat("safetensors length: got ", length_field.size(),
                                                   " bytes, want ", kSafetensorsLengthBytes));
  }
  uint64_t length = 0;
  for (size_t i = length_field.size(); i > 0; --i) {
    length = length << 8 | static_cast<unsigned char>(length_field[i - 1]);
  }
  const int64_t max_length = std::min(kMaxSafetensorsHeaderBytes,
                                      std::max<int64_t>(0, file_bytes - kSafetensorsLengthBytes));
  if (length <= static_cast<uint64_t>(max_length)) return static_cast<int64_t>(length);
  return absl::InvalidArgumentError(absl::StrCat("safetensors header length: got ", length,
                                                 " bytes, want at most ", max_length,
                                                 ", of a file of ", file_bytes, " bytes"));
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json,
                                                         int64_t data_bytes) {
  Reader reader;
  const bool is_parsed = nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
  ASSIGN_OR_RETURN(auto header, std::move(reader).Take(is_parsed));
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const SafetensorsEntry& x, const SafetensorsEntry& y) {
              return std::pair(x.begin, x.end) < std::pair(y.begin, y.end);
            });
  RETURN_IF_ERROR(CheckNames(header));
  RETURN_IF_ERROR(CheckLayout(header, data_bytes));
  return header;
}

std::string PrintSafetensorsHeader(const SafetensorsHeader& header) {
  // Names and texts may contain any bytes, but JSON is UTF-8.
  const auto quoted = [](const std::string& value) {
    return nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  std::vector<std::string> parts;
  for (const auto& [key, value] : header.metadata) {
    parts.push_back(absl::StrCat(quoted(key), ":", quoted(value)));
  }
  if (!parts.empty()) {
    parts = {absl::StrCat("\"", kMetadataName, "\":{", absl::StrJoin(parts, ","), "}")};
  }
  for (const SafetensorsEntry& tensor : header.tensors) {
    parts.push_back(absl::StrCat(quoted(tensor.name), ":{\"dtype\":\"", tensor.type,
                                 "\",\"shape\":[", absl::StrJoin(tensor.shape, ","),
                                 "],\"data_offsets\":[", tensor.begin, ",", tensor.end, "]}"));
  }
  std::string text = absl::StrCat("{", absl::StrJoin(parts, ","), "}");
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  std::string field(kSafetensorsLengthBytes, '\0');
  for (size_t i = 0; i < field.size(); ++i) field[i] = static_cast<char>(length >> (8 * i) & 0xff);
  return field + text;
}

namespace {

std::string Why(int error) { return std::generic_category().message(error); }

absl::Status At(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

}  // namespace

absl::StatusOr<MappedSafetensors> MappedSafetensors::Open(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot be read: ", Why(errno)));
  }
  MappedSafetensors mapped;
  mapped.mapping_ = MapFile(file);
  close(file);
  if (mapped.mapping_ == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": got no file of tensors, want a .safetensors file that is not empty"));
  }
  const absl::string_view text(reinterpret_cast<const char*>(mapped.mapping_.get()),
                               mapped.mapping_.get_deleter().bytes);
  const auto file_bytes = static_cast<int64_t>(text.size());
  const auto length = SafetensorsHeaderBytes(text.substr(0, kSafetensorsLengthBytes), file_bytes);
  if (!length.ok()) return At(path, length.status());
  mapped.first_ = kSafetensorsLengthBytes + *length;
  auto header =
      ParseSafetensorsHeader(text.substr(kSafetensorsLengthBytes, static_cast<size_t>(*length)),
                             file_bytes - mapped.first_);
  if (!header.ok()) return At(path, header.status());
  mapped.header_ = *std::move(header);
  return mapped;
}

absl::string_view MappedSafetensors::BytesOf(const SafetensorsEntry& tensor) const {
  const char* const data = reinterpret_cast<const char*>(mapping_.get());
  return {data + first_ + tensor.begin, static_cast<size_t>(tensor.bytes())};
}

const SafetensorsEntry* MappedSafetensors::Find(absl::string_view name) const {
  for (const SafetensorsEntry& tensor : header_.tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

absl::Status BeginSafetensors(const std::string& path, const SafetensorsHeader& header,
                              OutputFile& file) {
  // No size: a file that cannot be replaced must not be overwritten, because it may be the input.
  RETURN_IF_ERROR(file.Open(path, std::nullopt));
  return file.Write(PrintSafetensorsHeader(header));
}

}  // namespace gemmd
