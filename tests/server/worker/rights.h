// SPDX-License-Identifier: Apache-2.0
//
// What a process may do, found by trying.
#pragma once

#include <string>

namespace gemmd {

// "inet=EPERM exec=EPERM ...": for each thing that a worker has no need of, the error of an attempt
// that cannot succeed in doing harm. With all rights the errors are those that the table of
// rights.cc names.
std::string DescribeRights();

}  // namespace gemmd
