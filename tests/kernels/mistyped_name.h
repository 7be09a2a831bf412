// SPDX-License-Identifier: Apache-2.0
//
// Mistyped names of kernels.
#pragma once

#include <algorithm>
#include <cstddef>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernel.h"

namespace gemmd {

inline std::vector<std::string_view> NamesOfTheCatalogue() {
  std::vector<std::string_view> names;
  for (const Kernel& kernel : Catalog()) names.push_back(kernel.name);
  return names;
}

// A name with some bytes inserted, deleted, replaced and swapped.
inline std::string Mistyped(std::string name, std::mt19937& random) {
  const auto below = [&](size_t end) { return random() % std::max<size_t>(end, 1); };
  for (size_t typos = 1 + below(4); typos > 0; --typos) {
    const size_t place = below(name.size());
    const char other = "abcdefmnks0123456789._x"[below(23)];
    switch (below(4)) {
      case 0: name.insert(name.begin() + static_cast<std::ptrdiff_t>(place), other); break;
      case 1: name.erase(place, 1); break;
      case 2: name[place] = other; break;
      default:
        if (place + 1 < name.size()) std::swap(name[place], name[place + 1]);
    }
  }
  return name;
}

// Unknown names: the shortest, long ones and mistyped ones of the catalogue.
inline std::vector<std::string> UnknownNames(const std::vector<std::string_view>& known) {
  std::mt19937 random(20240612);
  std::vector<std::string> names = {"", "x", std::string(1000, 'm'), std::string(128, '~')};
  for (int i = 0; i < 50; ++i) {
    names.push_back(Mistyped(std::string(known[random() % known.size()]), random));
  }
  return names;
}

}  // namespace gemmd
