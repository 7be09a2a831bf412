// SPDX-License-Identifier: Apache-2.0
//
// The catalogue: every kernel that this build knows. A new family is a new table and one line in
// catalog.cc; a new kernel is one row of its family's table.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/kernel.h"

namespace gemmd {

// Every kernel, family by family; among equals the preferred one comes first.
absl::Span<const Kernel> Catalog();

// The kernels of one kind of device.
absl::Span<const Kernel> Catalog(DeviceKind kind);

// Errors: NotFound; the message names the nearest names of the catalogue.
absl::StatusOr<const Kernel*> FindKernel(std::string_view name);

}  // namespace gemmd
