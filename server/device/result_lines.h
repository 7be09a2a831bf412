// SPDX-License-Identifier: Apache-2.0
//
// A result whose lines do not follow each other where it goes: they alone are copied, and what lies
// between them is left as it is.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "server/device/copy_threads.h"
#include "server/device/job.h"

namespace gemmd {

// Whether D goes to memory of the job's in which there is more than its elements.
bool HasGaps(const Job& job);

// What of D's lines is in a range of D's bytes, as the problem lays them out: the range is `from`,
// and `first` bytes of D precede it. The job has memory for D.
void AppendLines(const Job& job, int64_t first, absl::Span<const std::byte> from,
                 std::vector<CopiedBytes>& copies);

}  // namespace gemmd
