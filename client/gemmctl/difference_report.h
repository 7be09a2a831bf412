// SPDX-License-Identifier: Apache-2.0
//
// What gemmctl diff found, as text and for programs.
#pragma once

#include <string>
#include <vector>

#include "client/matrix/difference.h"
#include "gemmd/v1/tensors.pb.h"
#include "nlohmann/json.hpp"

namespace gemmd {

// Two matrices that were compared, by names for the reader.
struct NamedDifference {
  std::string a;
  std::string b;
  Difference difference;
};

// "0x7fc00000", with the digits that the type has.
std::string PatternText(v1::ElementType type, uint64_t pattern);

// "1.5", with as many digits as tell the value from its neighbours.
std::string ElementText(v1::ElementType type, uint64_t pattern);

// "[2, 17, 5]", the first for a batch alone.
std::string PlaceText(const Difference& difference, const DifferingElement& element);

// How far a distance is on the way from 1 ulp, which gives 0, to the largest one, which gives 1:
// equal factors are equal steps. Precondition: 1 <= ulps <= most_ulps.
double ShadeOf(uint64_t ulps, uint64_t most_ulps);

std::string DifferenceText(const NamedDifference& named);
nlohmann::ordered_json DifferenceJson(const NamedDifference& named);

}  // namespace gemmd
