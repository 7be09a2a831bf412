// SPDX-License-Identifier: Apache-2.0
#include "server/wire/reflection_answer.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <string_view>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "kernels/peer_text.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"

namespace gemmd {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;

absl::Status UnknownSymbol(std::string_view field, std::string_view name) {
  return absl::NotFoundError(GotWant(field, Shown(name), "one that this server has"));
}

// The file, and then those that it imports, each once.
absl::Status AddFiles(const google::protobuf::FileDescriptor* file, ReflectionReply& response) {
  absl::flat_hash_set<const google::protobuf::FileDescriptor*> seen = {file};
  std::vector<const google::protobuf::FileDescriptor*> files = {file};
  for (size_t i = 0; i < files.size(); ++i) {
    google::protobuf::FileDescriptorProto proto;
    files[i]->CopyTo(&proto);
    response.mutable_file_descriptor_response()->add_file_descriptor_proto(
        proto.SerializeAsString());
    for (int j = 0; j < files[i]->dependency_count(); ++j) {
      const google::protobuf::FileDescriptor* const import = files[i]->dependency(j);
      if (seen.insert(import).second) files.push_back(import);
    }
  }
  return absl::OkStatus();
}

absl::Status AddExtensionNumbers(const std::string& name, ReflectionReply& response) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  const Descriptor* const type = pool.FindMessageTypeByName(name);
  if (type == nullptr) return UnknownSymbol("all_extension_numbers_of_type", name);
  std::vector<const FieldDescriptor*> extensions;
  pool.FindAllExtensions(type, &extensions);
  auto& answer = *response.mutable_all_extension_numbers_response();
  answer.set_base_type_name(name);
  for (const FieldDescriptor* const field : extensions) {
    answer.add_extension_number(field->number());
  }
  return absl::OkStatus();
}

absl::Status CheckSymbols(const ReflectionQuestion& request) {
  RETURN_IF_ERROR(CheckNameLength("host", request.host()));
  RETURN_IF_ERROR(CheckNameLength("file_by_filename", request.file_by_filename()));
  RETURN_IF_ERROR(CheckNameLength("file_containing_symbol", request.file_containing_symbol()));
  RETURN_IF_ERROR(CheckNameLength("file_containing_extension.containing_type",
                                  request.file_containing_extension().containing_type()));
  RETURN_IF_ERROR(
      CheckNameLength("all_extension_numbers_of_type", request.all_extension_numbers_of_type()));
  return CheckNameLength("list_services", request.list_services());
}

// What the requested thing is; NotFound and InvalidArgument become a part of the answer.
absl::Status DescribeSymbol(const ReflectionQuestion& request,
                            const std::vector<std::string>& services, ReflectionReply& response) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  switch (request.message_request_case()) {
    case ReflectionQuestion::kFileByFilename: {
      const google::protobuf::FileDescriptor* const file =
          pool.FindFileByName(request.file_by_filename());
      if (file == nullptr) return UnknownSymbol("file_by_filename", request.file_by_filename());
      return AddFiles(file, response);
    }
    case ReflectionQuestion::kFileContainingSymbol: {
      const std::string& symbol = request.file_containing_symbol();
      const google::protobuf::FileDescriptor* const file = pool.FindFileContainingSymbol(symbol);
      if (file == nullptr) return UnknownSymbol("file_containing_symbol", symbol);
      return AddFiles(file, response);
    }
    case ReflectionQuestion::kFileContainingExtension: {
      const auto& extension = request.file_containing_extension();
      const Descriptor* const type = pool.FindMessageTypeByName(extension.containing_type());
      const FieldDescriptor* const field =
          type == nullptr ? nullptr
                          : pool.FindExtensionByNumber(type, extension.extension_number());
      if (field == nullptr) {
        return UnknownSymbol("file_containing_extension", extension.containing_type());
      }
      return AddFiles(field->file(), response);
    }
    case ReflectionQuestion::kAllExtensionNumbersOfType:
      return AddExtensionNumbers(request.all_extension_numbers_of_type(), response);
    case ReflectionQuestion::kListServices:
      for (const std::string& service : services) {
        response.mutable_list_services_response()->add_service()->set_name(service);
      }
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(GotWant("message_request", "none", "one of its kinds"));
  }
}

}  // namespace

absl::StatusOr<ReflectionReply> AnswerReflection(ReflectionQuestion question,
                                                 const std::vector<std::string>& services) {
  RETURN_IF_ERROR(CheckSymbols(question));
  ReflectionReply reply;
  reply.set_valid_host(question.host());
  if (const absl::Status status = DescribeSymbol(question, services, reply); !status.ok()) {
    reply.mutable_error_response()->set_error_code(status.raw_code());
    reply.mutable_error_response()->set_error_message(std::string(status.message()));
  }
  *reply.mutable_original_request() = std::move(question);
  return reply;
}

}  // namespace gemmd
