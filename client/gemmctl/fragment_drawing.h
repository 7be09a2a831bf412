// SPDX-License-Identifier: Apache-2.0
//
// Grids of fragments as text for a terminal and as a picture.
#pragma once

#include <string>
#include <vector>

#include "client/gemmctl/fragment_grid.h"

namespace gemmd {

// An aligned grid under its title, cut into parts of at most 120 characters a line.
// With colours (ANSI), lanes of one quad have one colour.
std::string GridText(const FragmentGrid& grid, bool has_colours);

// One SVG file with the grids below each other, cells coloured by lane; it refers to nothing.
std::string GridsSvg(const std::string& title, const std::vector<FragmentGrid>& grids);

}  // namespace gemmd
