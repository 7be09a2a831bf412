// SPDX-License-Identifier: Apache-2.0
//
// What reflection answers to one question: which services there are, and the files that describe
// what this program has descriptors of.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "reflection/v1alpha/reflection.pb.h"

namespace gemmd {

using ReflectionQuestion = grpc::reflection::v1alpha::ServerReflectionRequest;
using ReflectionReply = grpc::reflection::v1alpha::ServerReflectionResponse;

// Errors: InvalidArgument for a name that is too long. That something is not there is an answer.
absl::StatusOr<ReflectionReply> AnswerReflection(ReflectionQuestion question,
                                                 const std::vector<std::string>& services);

}  // namespace gemmd
