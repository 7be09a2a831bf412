// SPDX-License-Identifier: Apache-2.0
//
// What a server says of itself, its devices, its kernels and the instructions behind these, for
// people.
#pragma once

#include <string>
#include <vector>

#include "gemmd/v1/registry.pb.h"

namespace gemmd {

std::string ServerInfoText(const v1::GetServerInfoResponse& info);

// wgmma comes in up to 32 widths N of each kind: rows of a table that differ in N alone become one.

using TableRow = std::vector<std::string>;

// The first cells are names of instructions. Rows of wgmma with equal other cells whose names
// differ in N alone become the first of them, named "wgmma.m64nNk16.f32.f16.f16, N = 8..256 by 8".
std::vector<TableRow> CollapseWidths(const std::vector<TableRow>& rows);

// Ascending numbers as runs: {8, 16, 24, 32, 48, 64} is "8..32 by 8, 48, 64".
std::string DescribeNumbers(std::vector<int> numbers);

// Types, provider and the devices that run each kernel. Unless `is_complete`, kernels of wgmma that
// differ in N alone share a line.
std::string KernelTable(const v1::ListKernelsResponse& kernels, bool is_complete);

}  // namespace gemmd
