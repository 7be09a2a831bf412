// SPDX-License-Identifier: Apache-2.0
//
// The fuzzer: `gemmd-fuzz --target=NAME FLAGS-OF-LIBFUZZER CORPUS` feeds one target, `gemmd-fuzz
// --list` prints the names of all, and `gemmd-fuzz --target=NAME --seeds=FOLDER` writes the inputs
// that it begins with.
#include <google/protobuf/stubs/common.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/message_mutator.h"
#include "tests/fuzz/target.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace gemmd::fuzz {
namespace {

const std::vector<Target>& Targets() {
  static const std::vector<Target>* const targets = [] {
    auto* const all = new std::vector<Target>();
    for (const auto list : {ProductTargets, InferTargets, TensorTargets, AnswerTargets,
                            RegistryTargets, QuestionTargets, ResidentTargets, RecordTargets,
                            FileTargets, LoadTargets, HeaderTargets, TrustTargets}) {
      for (const Target& target : list()) all->push_back(target);
    }
    return all;
  }();
  return *targets;
}

// The target that this process feeds, chosen once at the start.
const Target* chosen = nullptr;

[[noreturn]] void List() {
  for (const Target& target : Targets()) std::cout << target.name << "\n";
  std::cout.flush();
  std::exit(0);  // NOLINT(concurrency-mt-unsafe)
}

[[noreturn]] void WriteSeeds(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  int number = 0;
  for (const std::string& seed : chosen->seeds()) {
    std::ofstream(folder / std::to_string(number++), std::ios::binary) << seed;
  }
  std::exit(0);  // NOLINT(concurrency-mt-unsafe)
}

// The value after the flag, where the argument is that flag.
std::string_view ValueOf(std::string_view flag, std::string_view argument) {
  return argument.starts_with(flag) ? argument.substr(flag.size()) : std::string_view();
}

// The message that the input is; the first `prefix` bytes choose among several. Null where the
// target takes no messages.
const google::protobuf::Message* MessageOf(std::string_view input, size_t& prefix) {
  prefix = 0;
  if (chosen->messages == nullptr) {
    return chosen->message == nullptr ? nullptr : chosen->message();
  }
  if (input.empty()) return nullptr;
  static const auto* const messages =
      new std::vector<const google::protobuf::Message*>(chosen->messages());
  prefix = 1;
  return (*messages)[static_cast<uint8_t>(input.front()) % messages->size()];
}

size_t Mutate(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  Choices choices(seed);
  if (chosen->change != nullptr && !choices.OnceIn(5)) {
    std::string input(reinterpret_cast<const char*>(data), size);
    chosen->change(input, choices);
    input.copy(reinterpret_cast<char*>(data), size);
    return size;
  }
  size_t prefix = 0;
  const auto* const kind = MessageOf({reinterpret_cast<const char*>(data), size}, prefix);
  if (kind == nullptr || choices.OnceIn(5)) return LLVMFuzzerMutate(data, size, max_size);
  const std::unique_ptr<google::protobuf::Message> message(kind->New());
  if (!message->ParseFromArray(data + prefix, static_cast<int>(size - prefix))) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  MutateMessage(*message, choices);
  if (chosen->repair != nullptr && !choices.OnceIn(3)) chosen->repair(*message, choices);
  const std::string bytes = message->SerializeAsString();
  if (prefix + bytes.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  bytes.copy(reinterpret_cast<char*>(data + prefix), bytes.size());
  return prefix + bytes.size();
}

}  // namespace
}  // namespace gemmd::fuzz

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  using namespace gemmd::fuzz;  // NOLINT(google-build-using-namespace): the entries are C.
#if GOOGLE_PROTOBUF_VERSION < 3022000
  google::protobuf::SetLogHandler(
      nullptr);  // Otherwise protobuf logs a line for each text that is not UTF-8.
#endif
  std::string_view seeds;
  // libFuzzer does not know these flags, so they are removed.
  int kept = 0;
  for (int i = 0; i < *argc; ++i) {
    const std::string_view argument = (*argv)[i];
    const std::string_view name = ValueOf("--target=", argument);
    if (argument == "--list") List();
    for (const Target& target : Targets()) {
      if (target.name == name) chosen = &target;
    }
    if (const std::string_view folder = ValueOf("--seeds=", argument); !folder.empty()) {
      seeds = folder;
    } else if (name.empty()) {
      (*argv)[kept++] = (*argv)[i];
    }
  }
  *argc = kept;
  if (chosen == nullptr) {
    std::cerr << "--target: want one of those that --list names" << std::endl;
    return 2;
  }
  if (!seeds.empty()) WriteSeeds(seeds);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (gemmd::fuzz::chosen == nullptr) std::exit(2);  // NOLINT(concurrency-mt-unsafe)
  gemmd::fuzz::chosen->run({reinterpret_cast<const char*>(data), size});
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  return gemmd::fuzz::Mutate(data, size, max_size, seed);
}
