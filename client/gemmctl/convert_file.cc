// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/convert_file.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/gemmctl/tensor_file.h"
#include "gemmd/element_type.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {
namespace {

bool IsFloat(v1::ElementType type) {
  switch (type) {
    case v1::ELEMENT_TYPE_F64:
    case v1::ELEMENT_TYPE_F32:
    case v1::ELEMENT_TYPE_TF32:
    case v1::ELEMENT_TYPE_F16:
    case v1::ELEMENT_TYPE_BF16:
    case v1::ELEMENT_TYPE_E4M3:
    case v1::ELEMENT_TYPE_E5M2:
    case v1::ELEMENT_TYPE_E3M2:
    case v1::ELEMENT_TYPE_E2M3:
    case v1::ELEMENT_TYPE_E2M1: return true;
    default: return false;
  }
}

bool IsConverted(const SafetensorsEntry& entry, const TensorConversion& conversion) {
  if (!IsFloat(TypeOfSafetensors(entry.type))) return false;
  if (!conversion.scale.has_value() && !conversion.pack24.has_value()) return true;
  return entry.shape.size() == 2 && entry.bytes() > 0;
}

absl::Status InTensor(const std::string& name, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(name, ": ", status.message()));
}

// Puts entries behind those that are there.
void Append(std::vector<SafetensorsEntry> entries, SafetensorsHeader& header) {
  const int64_t first = header.tensors.empty() ? 0 : header.tensors.back().end;
  for (SafetensorsEntry& entry : entries) {
    entry.begin += first;
    entry.end += first;
    header.tensors.push_back(std::move(entry));
  }
}

// Adds the entries that the conversion will fill. No sum of sizes leaves 63 bits: an entry is at
// most 64 times as large as its bytes in the file that is read.
absl::Status Plan(const SourceTensor& input, const TensorConversion& conversion,
                  SafetensorsHeader& header) {
  const auto planned = PlanConversion(input, conversion);
  if (!planned.ok()) return InTensor(input.name, planned.status());
  auto entries = EntriesFor(input.name, *planned, conversion);
  if (!entries.ok()) return InTensor(input.name, entries.status());
  Append(*std::move(entries), header);
  if (!conversion.pack24.has_value()) return absl::OkStatus();
  for (auto& fact : MetadataFor(input.name, *planned)) header.metadata.push_back(std::move(fact));
  return absl::OkStatus();
}

// A tensor's own header says its name; its type and shape are all that planning needs.
absl::StatusOr<SafetensorsHeader> PlanFile(const MappedSafetensors& input,
                                           const TensorConversion& conversion) {
  SafetensorsHeader header;
  header.metadata = input.header().metadata;
  for (const SafetensorsEntry& entry : input.header().tensors) {
    if (!IsConverted(entry, conversion)) {
      SafetensorsEntry copy = entry;
      copy.begin = 0;
      copy.end = entry.bytes();
      Append({std::move(copy)}, header);
      continue;
    }
    const SourceTensor tensor = {
        .name = entry.name, .type = TypeOfSafetensors(entry.type), .shape = entry.shape};
    if (absl::Status status = Plan(tensor, conversion, header); !status.ok()) return status;
  }
  return header;
}

// Converts one tensor and adds its bytes to the file.
absl::StatusOr<ConversionReport> AddTensor(const SourceTensor& input,
                                           const TensorConversion& conversion,
                                           SafetensorsWriter& writer) {
  const auto made = ConvertTensor(input, conversion);
  if (!made.ok()) return InTensor(input.name, made.status());
  if (absl::Status status = writer.Add(BytesFor(*made)); !status.ok()) return status;
  return ReportOf(input, *made);
}

}  // namespace

absl::StatusOr<FileConversion> ConvertFile(const MappedSafetensors& input,
                                           const TensorConversion& conversion,
                                           const std::string& path) {
  const auto header = PlanFile(input, conversion);
  if (!header.ok()) return header.status();
  SafetensorsWriter writer(path);
  if (absl::Status status = writer.Begin(*header); !status.ok()) return status;
  FileConversion done;
  for (const SafetensorsEntry& entry : input.header().tensors) {
    if (!IsConverted(entry, conversion)) {
      if (absl::Status status = writer.Add(input.BytesOf(entry)); !status.ok()) return status;
      ++done.copied;
      continue;
    }
    std::string own;
    const auto tensor = TensorOf(input, entry, v1::ELEMENT_TYPE_UNSPECIFIED, own);
    if (!tensor.ok()) return tensor.status();
    auto report = AddTensor(*tensor, conversion, writer);
    if (!report.ok()) return report.status();
    done.reports.push_back(*std::move(report));
  }
  if (absl::Status status = writer.End(); !status.ok()) return status;
  return done;
}

absl::StatusOr<ConversionReport> ConvertToFile(const SourceTensor& input,
                                               const TensorConversion& conversion,
                                               const std::string& path) {
  SafetensorsHeader header;
  if (absl::Status status = Plan(input, conversion, header); !status.ok()) return status;
  SafetensorsWriter writer(path);
  if (absl::Status status = writer.Begin(header); !status.ok()) return status;
  auto report = AddTensor(input, conversion, writer);
  if (!report.ok()) return report.status();
  if (absl::Status status = writer.End(); !status.ok()) return status;
  return report;
}

}  // namespace gemmd
