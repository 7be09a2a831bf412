// SPDX-License-Identifier: Apache-2.0
//
// Human-readable tables of a server's devices, kernels and matrix instructions.
#pragma once

#include <string>
#include <vector>

#include "gemmd/v1/registry.pb.h"

namespace gemmd {

std::string ServerInfoText(const v1::GetServerInfoResponse& info);

// wgmma comes in up to 32 widths N of each kind: table rows that differ only in N are merged.

using TableRow = std::vector<std::string>;

// The first cells are names of instructions. wgmma rows that are equal except for the N in their
// names become one row, named "wgmma.m64nNk16.f32.f16.f16, N = 8..256 by 8".
std::vector<TableRow> CollapseWidths(const std::vector<TableRow>& rows);

// Ascending numbers as runs: {8, 16, 24, 32, 48, 64} is "8..32 by 8, 48, 64".
std::string DescribeNumbers(std::vector<int> numbers);

// Types, provider and the devices that run each kernel. Unless `is_complete`, wgmma kernels that
// differ only in N share a line.
std::string KernelTable(const v1::ListKernelsResponse& kernels, bool is_complete);

}  // namespace gemmd
