// SPDX-License-Identifier: Apache-2.0
//
// The rights of a process, found by trying.
#pragma once

#include <string>

namespace gemmd {

// "inet=EPERM exec=EPERM ...": for each right that a worker does not need, the error of a harmless
// attempt to use it. With all rights, the errors are those in the table of rights.cc.
std::string DescribeRights();

}  // namespace gemmd
