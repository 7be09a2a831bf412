// SPDX-License-Identifier: Apache-2.0
//
// The fuzzer's properties for a bounded, seeded set of mutated files.
#include "tests/client/matrix/npy_fuzz.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gemmd/v1/tensors.pb.h"
#include "tests/client/matrix/npy_text.h"
#include "tests/testing/random_source.h"

namespace gemmd {
namespace {

void RunEntry(const std::string& input) {
  FuzzNpy(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

std::vector<std::string> Seeds() {
  const std::string data(48, '\1');
  std::vector<std::string> seeds;
  for (const char* dict : {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }       \n",
                           "{'descr': '|b1', 'fortran_order': True, 'shape': (12, 4), }\n",
                           "{'descr': '|V1', 'fortran_order': True, 'shape': (2, 3, 8), }\n",
                           "{'descr': '>f8', 'fortran_order': False, 'shape': (6,), }\n",
                           "{'descr': '<V2', 'fortran_order': True, 'shape': (3, 4, 2), }\n",
                           "{'descr': '|i1', 'fortran_order': False, 'shape': (0, 3), }\n"}) {
    for (int version : {1, 2, 3}) {
      for (char hint = 0; hint < v1::ElementType_ARRAYSIZE; ++hint) {
        seeds.push_back(hint + RawNpyHeader(version, dict) + data);
      }
    }
  }
  return seeds;
}

TEST(NpyFuzzTest, SurvivesMutatedFiles) {
  const std::vector<std::string> seeds = Seeds();
  RandomSource random;
  const auto below = [&](size_t bound) { return static_cast<size_t>(random.Bits() % bound); };
  const std::string pieces[] = {"(",
                                ")",
                                ",",
                                "'",
                                "-1",
                                "9223372036854775807",
                                "{",
                                "}",
                                " ",
                                "\n",
                                "True",
                                "V1",
                                "<f1",
                                "descr",
                                "shape",
                                "\xff\xff\xff\xff",
                                std::string(1, '\0')};
  for (const std::string& seed : seeds) RunEntry(seed);
  for (int i = 0; i < 40000; ++i) {
    std::string input = seeds[below(seeds.size())];
    for (size_t j = below(4) + 1; j > 0; --j) {
      const size_t at = below(input.size() + 1);
      const std::string& piece = pieces[below(std::size(pieces))];
      switch (below(5)) {
        case 0: input.insert(at, piece); break;
        case 1: input.erase(at, below(8)); break;
        case 2: input.resize(at); break;
        case 3: input.replace(at, piece.size(), piece); break;
        default:
          if (at < input.size()) input[at] = static_cast<char>(random.Bits());
      }
      if (input.empty()) break;
    }
    RunEntry(input);
  }
}

}  // namespace
}  // namespace gemmd
